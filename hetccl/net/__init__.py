"""The network between hosts: addresses, handshakes, connections."""
