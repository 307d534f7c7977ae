"""The sockets that peers connect to: all on one port, for some addresses of this host or for all."""

import errno
import socket

# Small messages go back and forth: by default, each would be held back for the acknowledgement of the one before.
AT_ONCE = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

BACKLOG = 4096
PORT_TRIES = 100


class Listener:
    """Sockets of one port. Raises OSError, naming the address.

    addresses : str, numeric; none: all
    card      : what peers must know
    """

    def __init__(self, addresses):
        self.sockets = []
        for attempt in range(PORT_TRIES):
            try:
                self._bind(addresses)
                break
            except OSError as error:
                self.close()
                # The port that the kernel chose for the first address is taken at another one.
                if error.errno != errno.EADDRINUSE or attempt == PORT_TRIES - 1:
                    raise
        self.card = {"port": self.sockets[0].getsockname()[1], "addresses": list(addresses)}

    def _bind(self, addresses):
        port = 0
        for address in addresses or (None,):
            self.sockets.append(_listen(address, port))
            port = self.sockets[0].getsockname()[1]

    def close(self):
        """Close them."""
        while self.sockets:
            self.sockets.pop().close()


def _listen(address, port):
    everything = address is None
    dual = everything and socket.has_dualstack_ipv6()
    host = address or ("::" if dual else "0.0.0.0")
    hints = socket.AI_NUMERICHOST | socket.AI_PASSIVE
    sock = None
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=hints)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dual)
        sock.setsockopt(*AT_ONCE)  # accepted connections have it, too
        sock.bind(where)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise OSError(error.errno, f"{error.strerror}: listening on {address or 'all addresses'}") from None
    return sock
