"""What Comm.register gives."""

from types import TracebackType

class Registration:
    def Free(self) -> None: ...
    def __enter__(self) -> Registration: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
