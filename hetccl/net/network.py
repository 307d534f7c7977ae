"""The network side of one communicator: what its ranks on other hosts are reached by."""


def shares_memory(settings, members, one, other):
    """Whether two ranks move their data through shared memory: those of one host, if shm is among the transports."""
    if one == other:
        return True
    return (settings.transport is None or "shm" in settings.transport) and members[one].shares_memory(members[other])


def open_network(rank, members, near, secret, settings):
    raise OSError("later")
