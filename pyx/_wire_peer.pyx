"""Layer L2: one peer of a wire; all in the .pxd and in C."""
