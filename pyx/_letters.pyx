"""Layer L3: messages and rows of them; all in the .pxd, so that the mailbox has them inline."""
