/* NVRTC for tests: what it is given is compiled by the host's C++ compiler, and the image that it returns is one that
 * the fake driver loads. It proves that the source which hetccl hands over is whole, and what is done with the
 * answers; nothing of NVIDIA's compiler. With -DPREFIX(name)=hiprtc##name (fakehiprtc.c) it is hipRTC.
 *
 * FAKE_RTC=command         `command in.cpp` compiles in.cpp and prints the path of a library
 * FAKE_RTC_ARCHS=75,90     what NVRTC says it compiles for
 * FAKE_RTC_FAIL=6          CompileProgram answers this, with a log */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef PREFIX
#define PREFIX(name) nvrtc##name
#endif
#define API __attribute__((visibility("default")))

typedef struct { char *source, image[4200], log[4200]; int is_ptx; } program_t;

static char options_seen[1024];

/* The options of the last compilation, with a newline after each. */
API const char *PREFIX(FakeOptions)(void) { return options_seen; }

API int PREFIX(Version)(int *major, int *minor) {
    *major = 13;
    *minor = 0;
    return 0;
}

API const char *PREFIX(GetErrorString)(int code) { return code == 6 ? "RTC_ERROR_COMPILATION" : "RTC_ERROR"; }

API int PREFIX(CreateProgram)(void **program, const char *source, const char *name, int nheaders,
                              const char *const *headers, const char *const *names) {
    if (!source || !name || nheaders || headers || names) return 3;
    program_t *made = calloc(1, sizeof *made);
    made->source = strdup(source);
    *program = made;
    return 0;
}

API int PREFIX(CompileProgram)(void *program, int noptions, const char *const *options) {
    program_t *p = program;
    char in[] = P_tmpdir "/fakertc-XXXXXX.cpp", command[4200], path[4096] = "";
    options_seen[0] = 0;
    for (int i = 0; i < noptions; i++) {
        strncat(options_seen, options[i], sizeof options_seen - strlen(options_seen) - 2);
        strcat(options_seen, "\n");
        p->is_ptx |= strstr(options[i], "=compute_") != NULL;
    }
    if (getenv("FAKE_RTC_FAIL")) {
        snprintf(p->log, sizeof p->log, "kernels(1): error: as the fake was told");
        return atoi(getenv("FAKE_RTC_FAIL"));
    }
    int fd = mkstemps(in, 4);
    FILE *file = fdopen(fd, "w");
    fputs(p->source, file);
    fclose(file);
    snprintf(command, sizeof command, "%s %s", getenv("FAKE_RTC"), in);
    FILE *answer = popen(command, "r");
    size_t n = fread(path, 1, sizeof path - 1, answer);
    int status = pclose(answer);
    unlink(in);
    path[n] = 0;
    snprintf(p->image, sizeof p->image, "fake-module:%s", path);
    return status ? 6 : 0;
}

API int PREFIX(GetProgramLogSize)(void *program, size_t *nbytes) {
    *nbytes = strlen(((program_t *)program)->log) + 1;
    return 0;
}

API int PREFIX(GetProgramLog)(void *program, char *text) {
    strcpy(text, ((program_t *)program)->log);
    return 0;
}

static int image_size(const program_t *program, size_t *nbytes, int is_ptx) {
    *nbytes = program->is_ptx == is_ptx ? strlen(program->image) + 1 : 0;
    return program->is_ptx == is_ptx ? 0 : 5;
}

static int image(const program_t *program, char *bytes, int is_ptx) {
    if (program->is_ptx != is_ptx) return 5;
    strcpy(bytes, program->image);
    return 0;
}

#ifdef FAKE_HIPRTC
API int hiprtcGetCodeSize(void *program, size_t *nbytes) { return image_size(program, nbytes, 0); }
API int hiprtcGetCode(void *program, char *bytes) { return image(program, bytes, 0); }
#else
API int nvrtcGetCUBINSize(void *program, size_t *nbytes) { return image_size(program, nbytes, 0); }
API int nvrtcGetCUBIN(void *program, char *bytes) { return image(program, bytes, 0); }
API int nvrtcGetPTXSize(void *program, size_t *nbytes) { return image_size(program, nbytes, 1); }
API int nvrtcGetPTX(void *program, char *bytes) { return image(program, bytes, 1); }

static int archs(int *numbers) {
    const char *text = getenv("FAKE_RTC_ARCHS");
    int count = 0;
    for (text = text ? text : "75,90"; *text; text += strcspn(text, ",") + (text[strcspn(text, ",")] == ',')) {
        if (numbers) numbers[count] = atoi(text);
        count++;
    }
    return count;
}

API int nvrtcGetNumSupportedArchs(int *count) {
    *count = archs(NULL);
    return 0;
}

API int nvrtcGetSupportedArchs(int *numbers) {
    archs(numbers);
    return 0;
}
#endif

API int PREFIX(DestroyProgram)(void **program) {
    free(((program_t *)*program)->source);
    free(*program);
    *program = NULL;
    return 0;
}
