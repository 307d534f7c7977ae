"""Run bench with each argument's words as its arguments; prints {argument: [exit status, stdout, stderr]} as JSON."""

import contextlib
import io
import json
import sys

from hetccl.__main__ import main


def outcome(arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(["bench", *arguments.split()])
        except SystemExit as ended:
            status = ended.code
    return [status, out.getvalue(), err.getvalue()]


if __name__ == "__main__":
    print(json.dumps({arguments: outcome(arguments) for arguments in sys.argv[1:]}))
