"""Compilers of device code that run in the process, NVRTC and hipRTC (include/hetccl/device_compiler.h); layer L1.

For a device whose code was not built ahead. Called with the GIL held, which is released while a compiler works: that
takes seconds. No device is touched.
"""

from libc.string cimport memcpy

from hetccl.errors import GpuError

from hetccl._dl cimport Library

# Names of the libraries, best first, by the name of the runtime that loads their code. HIP 5 has hipRTC in its own.
SONAMES = {
    "cuda": ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"),
    "hip": ("libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libhiprtc.so", "libamdhip64.so.5"),
}
cdef dict NAMES = {"cuda": ("NVRTC", "nvrtc"), "hip": ("hipRTC", "hiprtc")}

cdef enum:
    OPTIONS_MAX = 8
    ARCHS_MAX = 256
    LOG_LINES = 12  # of what a compiler said, in an error


cdef class Compiler:
    """A run-time compiler: made by `Compiler.open`.

    name    : "NVRTC" or "hipRTC"
    library : hetccl._dl.Library
    """

    def __init__(self):
        raise TypeError("use Compiler.open(runtime)")

    @staticmethod
    def open(str runtime, override=None, folders=()):
        """The compiler of a runtime.

        runtime           : "cuda" | "hip"
        override, folders : as Library.open takes them
        Raises            : LibraryNotFound, SymbolNotFound
        """
        cdef Compiler compiler = Compiler.__new__(Compiler)
        compiler.name, compiler.prefix = NAMES[runtime]
        compiler.library = Library.open(SONAMES[runtime], override=override, folders=folders)
        code = "CUBIN" if runtime == "cuda" else "Code"
        ptx = "PTX" if runtime == "cuda" else "Code"
        compiler_fill(compiler, <void*> &compiler.table.version, "Version")
        compiler_fill(compiler, <void*> &compiler.table.error_text, "GetErrorString")
        compiler_fill(compiler, <void*> &compiler.table.create, "CreateProgram")
        compiler_fill(compiler, <void*> &compiler.table.compile, "CompileProgram")
        compiler_fill(compiler, <void*> &compiler.table.destroy, "DestroyProgram")
        compiler_fill(compiler, <void*> &compiler.table.log_size, "GetProgramLogSize")
        compiler_fill(compiler, <void*> &compiler.table.log, "GetProgramLog")
        compiler_fill(compiler, <void*> &compiler.table.code_size, f"Get{code}Size")
        compiler_fill(compiler, <void*> &compiler.table.code, f"Get{code}")
        compiler_fill(compiler, <void*> &compiler.table.ptx_size, f"Get{ptx}Size")
        compiler_fill(compiler, <void*> &compiler.table.ptx, f"Get{ptx}")
        compiler_fill(compiler, <void*> &compiler.table.arch_count, "GetNumSupportedArchs", False)
        compiler_fill(compiler, <void*> &compiler.table.archs, "GetSupportedArchs", False)
        return compiler

    def version(self):
        """As text: "13.5"."""
        cdef int major = 0, minor = 0
        self.check(self.table.version(&major, &minor), "Version")
        return f"{major}.{minor}"

    def architectures(self):
        """What it compiles for: tuple of str, "sm_75" and on; empty where it does not tell."""
        cdef int[ARCHS_MAX] numbers
        cdef int count = 0
        if self.table.arch_count is NULL or self.table.archs is NULL:
            return ()
        self.check(self.table.arch_count(&count), "GetNumSupportedArchs")
        if count > ARCHS_MAX:
            return ()
        self.check(self.table.archs(numbers), "GetSupportedArchs")
        return tuple(f"sm_{numbers[i]}" for i in range(count))

    def compile(self, bytes source, str arch):
        """Compile for one architecture.

        source  : C++
        arch    : "sm_90", "gfx942". One of NVIDIA's that the compiler does not know yet gets PTX of the latest before
                  it, from which the driver makes code
        Returns : (image for the runtime's module_load: bytes, what it is: str)
        Blocks  : seconds, without the GIL
        Raises  : GpuError, with what the compiler said
        """
        target, is_ptx = self._target(arch)
        if self.prefix == "nvrtc":
            option = f"--gpu-architecture={target}"
            options = [option, "--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true"]
        else:
            options = [f"--offload-arch={target}", "-std=c++17", "-O3", "-ffp-contract=off"]
        return compiler_run(self, source, [text.encode() for text in options], is_ptx), target

    def _target(self, arch):
        """(architecture to ask for, whether as PTX)"""
        known = self.architectures()
        if not known or arch in known or not arch.startswith("sm_"):
            return arch, False
        numbers = sorted(int(name[3:]) for name in known)
        before = [number for number in numbers if number < int(arch[3:])]
        return f"compute_{max(before or numbers[:1])}", True

    cdef int check(self, int code, str function, log=None) except -1:
        if code == 0:
            return 0
        call = f"{self.prefix}{function}"
        text = self.table.error_text(code).decode(errors="replace")
        said = "\n".join(["", *log.splitlines()[:LOG_LINES]]) if log else ""
        raise GpuError(f"{call} of {self.library.path} failed: {text} (code {code}){said}", call=call, code=code)


cdef int compiler_fill(Compiler compiler, void* slot, str function, bint required=True) except -1:
    cdef bytes name = f"{compiler.prefix}{function}".encode()
    cdef void* address = compiler.library.symbol(name) if required else compiler.library.find(name)
    memcpy(slot, &address, sizeof(address))
    return 0


cdef str compiler_log(Compiler compiler, void* program):
    """What the compiler said of a program; "" if it does not tell."""
    cdef size_t nbytes = 0
    if compiler.table.log_size(program, &nbytes) or nbytes < 2:
        return ""
    text = bytearray(nbytes)
    cdef char* at = text
    return "" if compiler.table.log(program, at) else bytes(text).rstrip(b"\0").decode(errors="replace")


cdef bytes compiler_run(Compiler compiler, bytes source, list options, bint is_ptx):
    cdef const char* pointers[OPTIONS_MAX]
    cdef const char* text = source
    cdef void* program = NULL
    cdef size_t nbytes = 0
    cdef char* at
    cdef int i, code, noptions = len(options)
    for i in range(noptions):
        pointers[i] = options[i]
    compiler.check(compiler.table.create(&program, text, b"hetccl_kernels", 0, NULL, NULL), "CreateProgram")
    try:
        with nogil:
            code = compiler.table.compile(program, noptions, pointers)
        if code:
            compiler.check(code, "CompileProgram", compiler_log(compiler, program))
        code = (compiler.table.ptx_size if is_ptx else compiler.table.code_size)(program, &nbytes)
        compiler.check(code, "GetCodeSize")
        image = bytearray(nbytes)
        at = image
        compiler.check((compiler.table.ptx if is_ptx else compiler.table.code)(program, at), "GetCode")
        return bytes(image)
    finally:
        compiler.table.destroy(&program)
