/* Receiving over a rail's connections (layer L2). A payload is read straight to its place in memory; what follows it,
 * and what is small, is read into the port's buffer, many frames by one system call.
 *
 * The peer has proved who it is, and still nothing it sends is believed: a frame that breaks a rule fails the rail
 * before a byte of its payload is stored. */
#ifndef HETCCL_TCP_RECEIVE_H
#define HETCCL_TCP_RECEIVE_H

#include "hetccl/tcp_send.h"

static inline hetccl_tcp_incoming_t *hetccl_tcp_incoming(hetccl_tcp_rail_t *rail, uint64_t number) {
    return &rail->incoming[number & (HETCCL_TCP_DEPTH - 1)];
}

/* Takes in an acknowledgement: whether it is legal. It may come late over a slower connection, never early. */
static inline int hetccl_tcp_acknowledged(hetccl_tcp_rail_t *rail, uint32_t ack) {
    uint64_t more = (uint32_t)(ack - (uint32_t)rail->base.completed);
    if (more > INT32_MAX) return 1;
    if (more > 0 && rail->base.completed + more > hetccl_tcp_gone(rail)) return 0;
    rail->base.completed += more;
    return 1;
}

/* Tells of the writes that have arrived. What is told may post writes on this rail, or end it. */
static inline void hetccl_tcp_arrive(hetccl_tcp_rail_t *rail) {
    for (;;) {
        hetccl_tcp_incoming_t *slot = hetccl_tcp_incoming(rail, rail->arrived);
        if (!slot->parts || slot->done < slot->parts) return;
        hetccl_tcp_incoming_t incoming = *slot;
        slot->parts = 0;
        rail->arrived += 1;
        if (!(incoming.flags & HETCCL_TCP_LAZY)) rail->ack_now = 1;
        if (incoming.flags & HETCCL_TCP_IMM) rail->base.on_imm(rail->base.peer, rail->base.index, incoming.imm);
        if (rail->base.state != HETCCL_RAIL_UP) return;
    }
}

static inline void hetccl_tcp_finish_frame(hetccl_tcp_connection_t *connection) {
    hetccl_tcp_rail_t *rail = connection->rail;
    hetccl_tcp_incoming(rail, rail->arrived + (uint32_t)(connection->in.sequence - (uint32_t)rail->arrived))->done += 1;
    connection->in_nbytes = 0;
    hetccl_tcp_arrive(rail);
}

/* Whether a part fits to the parts of the same write that have come before; it counts from now on. */
static inline int hetccl_tcp_begin_part(hetccl_tcp_rail_t *rail, const hetccl_tcp_frame_t *frame) {
    uint32_t ahead = frame->sequence - (uint32_t)rail->arrived;
    if (ahead >= HETCCL_TCP_DEPTH) return 0;
    hetccl_tcp_incoming_t *slot = hetccl_tcp_incoming(rail, rail->arrived + ahead);
    if (!slot->parts) {
        *slot = (hetccl_tcp_incoming_t){.imm = frame->imm, .parts = frame->parts, .flags = frame->flags};
    } else if (slot->parts != frame->parts || slot->imm != frame->imm || slot->flags != frame->flags ||
               slot->begun == slot->parts) {
        return 0;
    }
    slot->begun += 1;
    return 1;
}

/* Takes in a header that is complete. */
static inline void hetccl_tcp_take_header(hetccl_tcp_connection_t *connection) {
    hetccl_tcp_rail_t *rail = connection->rail;
    const hetccl_tcp_frame_t *frame = &connection->in;
    if (frame->kind == HETCCL_TCP_ACK) {
        static const hetccl_tcp_frame_t empty = {.kind = HETCCL_TCP_ACK};
        connection->in_nbytes = 0;
        if (memcmp(frame, &empty, offsetof(hetccl_tcp_frame_t, ack)) != 0 ||
            !hetccl_tcp_acknowledged(rail, frame->ack)) {
            hetccl_tcp_breach(rail);
        }
        return;
    }
    int legal = frame->kind == HETCCL_TCP_WRITE && !(frame->flags & ~(HETCCL_TCP_IMM | HETCCL_TCP_LAZY)) &&
                frame->parts >= 1 && frame->parts <= rail->nconnections &&
                frame->nbytes <= HETCCL_TCP_MAX_WRITE && (frame->nbytes > 0 || frame->parts == 1);
    if (legal && frame->nbytes > 0) {
        connection->dst = hetccl_tcp_offered(rail, frame->rkey, frame->remote_addr, frame->nbytes);
        legal = connection->dst != NULL;
    }
    if (!legal || !hetccl_tcp_begin_part(rail, frame) || !hetccl_tcp_acknowledged(rail, frame->ack)) {
        hetccl_tcp_breach(rail);
        return;
    }
    connection->left = frame->nbytes;
    rail->unacked_nbytes += frame->nbytes;
    if (!connection->left) hetccl_tcp_finish_frame(connection);
}

/* Memory can be given back while a payload for it is under way: nothing is stored there any more. */
static inline int hetccl_tcp_still_offered(const hetccl_tcp_connection_t *connection) {
    return hetccl_tcp_offered(connection->rail, connection->in.rkey, (uint64_t)(uintptr_t)connection->dst,
                              connection->left) != NULL;
}

static inline void hetccl_tcp_take_payload(hetccl_tcp_connection_t *connection, size_t nbytes) {
    connection->dst += nbytes;
    connection->left -= nbytes;
    if (!connection->left) hetccl_tcp_finish_frame(connection);
}

/* Takes in the bytes of the buffer. */
static inline void hetccl_tcp_parse(hetccl_tcp_connection_t *connection, const uint8_t *bytes, size_t nbytes) {
    hetccl_tcp_rail_t *rail = connection->rail;
    while (nbytes > 0 && rail->base.state == HETCCL_RAIL_UP) {
        size_t piece;
        if (connection->left) {
            piece = nbytes < connection->left ? nbytes : connection->left;
            if (!hetccl_tcp_still_offered(connection)) {
                hetccl_tcp_breach(rail);
                return;
            }
            memcpy(connection->dst, bytes, piece);
            hetccl_tcp_take_payload(connection, piece);
        } else {
            size_t missing = sizeof(connection->in) - connection->in_nbytes;
            piece = nbytes < missing ? nbytes : missing;
            memcpy((uint8_t *)&connection->in + connection->in_nbytes, bytes, piece);
            connection->in_nbytes += piece;
            if (piece == missing) hetccl_tcp_take_header(connection);
        }
        bytes += piece;
        nbytes -= piece;
    }
}

/* One read of the socket, or the end of the stream. The bytes read, 0: there are none. */
static inline size_t hetccl_tcp_read(hetccl_tcp_connection_t *connection) {
    hetccl_tcp_rail_t *rail = connection->rail;
    struct iovec iov[2];
    size_t direct = connection->left < HETCCL_TCP_PIECE_BYTES ? connection->left : HETCCL_TCP_PIECE_BYTES;
    int niov = 0;
    if (direct && !hetccl_tcp_still_offered(connection)) {
        hetccl_tcp_breach(rail);
        return 0;
    }
    if (direct) iov[niov++] = (struct iovec){connection->dst, direct};
    size_t behind = direct == connection->left ? sizeof(rail->port->buffer) : 0;
    /* What follows a long payload is likely another: the header alone, so that this one too is read to its place. */
    if (behind && direct >= sizeof(rail->port->buffer) / 2) behind = sizeof(connection->in);
    if (behind) iov[niov++] = (struct iovec){rail->port->buffer, behind};
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = (size_t)niov};
    ssize_t got = recvmsg(connection->fd, &message, MSG_DONTWAIT);
    if (got <= 0) {
        if (got < 0 && errno == EINTR) return 0;
        connection->readable = 0;
        if (got < 0 && errno == EAGAIN) return 0;
        int error = got < 0 ? errno : 0;
        hetccl_tcp_end(rail, error);
        connection->ended = 1;
        return 0;
    }
    if ((size_t)got < direct + behind && !connection->closing) connection->readable = 0;
    rail->received_nbytes += (size_t)got;
    size_t placed = (size_t)got < direct ? (size_t)got : direct;
    if (placed) hetccl_tcp_take_payload(connection, placed);
    hetccl_tcp_parse(connection, rail->port->buffer, (size_t)got - placed);
    return (size_t)got;
}

/* Takes in what has come, and about a piece at most. Whether anything has. */
static int hetccl_tcp_receive(hetccl_tcp_connection_t *connection) {
    hetccl_tcp_rail_t *rail = connection->rail;
    size_t total = 0;
    while (connection->readable && !connection->ended && total < HETCCL_TCP_PIECE_BYTES &&
           rail->base.state == HETCCL_RAIL_UP) {
        total += hetccl_tcp_read(connection);
    }
    if (rail->ending && !connection->readable) connection->ended = 1;
    return total > 0;
}

#endif
