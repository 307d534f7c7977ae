"""Layer L0: holds no code; the module exists so that _abi.pxd has a home in the package."""
