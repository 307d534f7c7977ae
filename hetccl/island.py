"""Island."""
