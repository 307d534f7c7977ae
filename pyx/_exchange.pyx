"""Layer L3: point-to-point calls over the links of their own class. Polled like a Run: no GIL, no lock, never waits.

A message is chosen at the head of a link, by source and tag, and stays there if the call cannot take it, so that
nothing is lost.
"""

from hetccl._shm cimport HETCCL_AGAIN, HETCCL_DONE, HETCCL_MOVED, hetccl_header_t


cdef int exchange_poll(void* work) noexcept nogil:
    """HETCCL_DONE once both halves are complete (or the receive is refused); negative: `failure` says where."""
    cdef Exchange* exchange = <Exchange*>work
    cdef Link* link
    cdef bint moved = False
    cdef int status
    if exchange.sending:
        link = &exchange.send_links[exchange.dest]
        status = link.ops.send(link.state, &exchange.outgoing)
        if status < 0:
            return fail(exchange, exchange.dest, &exchange.outgoing, status)
        exchange.sending = status != HETCCL_DONE
        moved = status != HETCCL_AGAIN
    if exchange.receiving and not exchange.matched:
        match(exchange)
    if exchange.receiving and exchange.matched:
        link = &exchange.recv_links[exchange.source]
        status = link.ops.recv(link.state, &exchange.incoming)
        if status < 0:
            return fail(exchange, exchange.source, &exchange.incoming, status)
        exchange.receiving = status != HETCCL_DONE
        moved = moved or status != HETCCL_AGAIN
    if not exchange.sending and not exchange.receiving:
        return HETCCL_DONE
    return HETCCL_MOVED if moved else HETCCL_AGAIN


cdef inline int fail(Exchange* exchange, int peer, hetccl_msg_t* message, int status) noexcept nogil:
    exchange.failure.peer = peer
    exchange.failure.message = message
    return status


cdef inline void match(Exchange* exchange) noexcept nogil:
    cdef int source
    if exchange.source != ANY:
        match_head(exchange, exchange.source, True)
        return
    for source in range(exchange.nranks):
        match_head(exchange, source, False)
        if exchange.matched or not exchange.receiving:
            return


cdef inline void match_head(Exchange* exchange, int source, bint only) noexcept nogil:
    """Take the message at the head of one link if it fits.

    A wrong tag is a refusal only where no other link can bring the right one.
    """
    cdef Link* link = &exchange.recv_links[source]
    cdef hetccl_header_t header
    if link.ops.peek(link.state, &header) != HETCCL_DONE:
        return
    nbytes, tag = header.nbytes, header.tag
    cdef bint wrong_tag = exchange.tag != ANY and exchange.tag != tag
    if wrong_tag and not only:
        return
    exchange.source = source
    if wrong_tag or nbytes > exchange.capacity:
        exchange.refusal = REFUSED_TAG if wrong_tag else REFUSED_LENGTH
        exchange.refused_tag = tag
        exchange.refused_nbytes = nbytes
        exchange.receiving = False
        return
    exchange.tag = tag
    exchange.incoming.nbytes = nbytes
    exchange.incoming.tag = tag
    exchange.matched = True


cdef void exchange_blockers(void* work, uint8_t* mask) noexcept nogil:
    """Mark the peers that the call waits for: 1, or 2 where any one of those will do."""
    cdef Exchange* exchange = <Exchange*>work
    cdef int peer
    if exchange.receiving:
        for peer in range(exchange.nranks):
            mask[peer] = 2 if exchange.source == ANY else exchange.source == peer
    if exchange.sending:
        mask[exchange.dest] = 1
