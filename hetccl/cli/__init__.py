"""The commands of `python -m hetccl`: one module each, with add_parser(subparsers) and run(args) -> exit status."""
