"""Vendors."""
