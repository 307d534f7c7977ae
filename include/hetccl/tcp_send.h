/* Sending over a rail's connections (layer L2): writes become frames, and frames go out several by one system call.
 *
 * A write stays in the rail's queue until it is acknowledged; each connection has its own place in the queue and
 * passes over the writes of which it carries no part. So nothing is copied, and what the socket does not take waits
 * where it lies. */
#ifndef HETCCL_TCP_SEND_H
#define HETCCL_TCP_SEND_H

#include "hetccl/tcp_state.h"

#define HETCCL_TCP_BATCH 16 /* frames of one system call */

typedef struct hetccl_tcp_batch {
    struct iovec iov[3 * HETCCL_TCP_BATCH];
    hetccl_tcp_frame_t frames[HETCCL_TCP_BATCH];
    uint64_t numbers[HETCCL_TCP_BATCH]; /* of the frames' writes */
    size_t left[HETCCL_TCP_BATCH];      /* bytes of the frames that have not gone out, headers included */
    int niov;
    int nframes;
    size_t nbytes;
} hetccl_tcp_batch_t;

static inline const hetccl_write_t *hetccl_tcp_queued(const hetccl_tcp_rail_t *rail, uint64_t number) {
    return &rail->writes[number & (HETCCL_TCP_DEPTH - 1)];
}

static inline size_t hetccl_tcp_write_bytes(const hetccl_write_t *write) { return write->nbytes[0] + write->nbytes[1]; }

static inline int hetccl_tcp_parts(const hetccl_tcp_rail_t *rail, const hetccl_write_t *write) {
    size_t parts = hetccl_tcp_write_bytes(write) / HETCCL_TCP_PART_BYTES;
    if (parts < 2) return 1;
    return parts < (size_t)rail->nconnections ? (int)parts : rail->nconnections;
}

/* Whether the connection has a frame to send; it passes over the writes that others carry alone. */
static inline int hetccl_tcp_has_output(hetccl_tcp_connection_t *connection) {
    hetccl_tcp_rail_t *rail = connection->rail;
    if (connection->sent && connection->out.kind == HETCCL_TCP_WRITE) return 1;
    while (connection->next < rail->base.posted) {
        if (connection->index < hetccl_tcp_parts(rail, hetccl_tcp_queued(rail, connection->next))) return 1;
        connection->next += 1;
    }
    return connection->sent > 0;
}

/* So many writes have gone out entirely. */
static inline uint64_t hetccl_tcp_gone(hetccl_tcp_rail_t *rail) {
    uint64_t gone = rail->base.posted;
    for (int i = 0; i < rail->nconnections; i++) {
        hetccl_tcp_connection_t *connection = &rail->connections[i];
        hetccl_tcp_has_output(connection);
        if (connection->next < gone) gone = connection->next;
    }
    return gone;
}

/* Appends the bytes [skip, skip + nbytes) of a write's two pieces. */
static inline void hetccl_tcp_append(hetccl_tcp_batch_t *batch, const hetccl_write_t *write, size_t skip,
                                     size_t nbytes) {
    for (int i = 0; i < 2 && nbytes > 0; i++) {
        if (skip >= write->nbytes[i]) {
            skip -= write->nbytes[i];
            continue;
        }
        size_t piece = write->nbytes[i] - skip < nbytes ? write->nbytes[i] - skip : nbytes;
        batch->iov[batch->niov++] = (struct iovec){(uint8_t *)(uintptr_t)write->ptr[i] + skip, piece};
        nbytes -= piece;
        skip = 0;
    }
}

/* Appends a frame, of which `sent` bytes have gone out. */
static inline void hetccl_tcp_append_frame(hetccl_tcp_connection_t *connection, hetccl_tcp_batch_t *batch,
                                           const hetccl_tcp_frame_t *frame, uint64_t number, size_t sent) {
    int i = batch->nframes++;
    batch->frames[i] = *frame;
    batch->numbers[i] = number;
    batch->left[i] = sizeof(*frame) + frame->nbytes - sent;
    batch->nbytes += batch->left[i];
    if (sent < sizeof(*frame)) {
        uint8_t *header = (uint8_t *)&batch->frames[i];
        batch->iov[batch->niov++] = (struct iovec){header + sent, sizeof(*frame) - sent};
        sent = sizeof(*frame);
    }
    if (!frame->nbytes) return;
    const hetccl_write_t *write = hetccl_tcp_queued(connection->rail, number);
    size_t begin = frame->remote_addr - write->remote_addr;
    hetccl_tcp_append(batch, write, begin + (sent - sizeof(*frame)), frame->nbytes - (sent - sizeof(*frame)));
}

/* The header of the connection's part of a write. */
static inline hetccl_tcp_frame_t hetccl_tcp_frame(const hetccl_tcp_connection_t *connection, uint64_t number) {
    const hetccl_tcp_rail_t *rail = connection->rail;
    const hetccl_write_t *write = hetccl_tcp_queued(rail, number);
    size_t nbytes = hetccl_tcp_write_bytes(write), begin = 0, end = nbytes;
    int parts = hetccl_tcp_parts(rail, write);
    if (parts > 1) {
        size_t part = (nbytes / (size_t)parts / HETCCL_TCP_PART_ALIGN + 1) * HETCCL_TCP_PART_ALIGN;
        begin = part * (size_t)connection->index;
        end = connection->index == parts - 1 ? nbytes : begin + part;
    }
    hetccl_tcp_frame_t frame = {
        .kind = HETCCL_TCP_WRITE,
        .flags = (uint8_t)write->flags,
        .parts = (uint16_t)parts,
        .sequence = (uint32_t)number,
        .remote_addr = write->remote_addr + begin,
        .rkey = write->rkey,
        .nbytes = (uint32_t)(end - begin),
        .imm = write->imm,
        .ack = (uint32_t)rail->arrived,
    };
    return frame;
}

static inline void hetccl_tcp_gather(hetccl_tcp_connection_t *connection, hetccl_tcp_batch_t *batch) {
    hetccl_tcp_rail_t *rail = connection->rail;
    batch->niov = batch->nframes = 0;
    batch->nbytes = 0;
    uint64_t number = connection->next;
    if (connection->sent) {
        hetccl_tcp_append_frame(connection, batch, &connection->out, number, connection->sent);
        if (connection->out.kind == HETCCL_TCP_WRITE) number += 1;
    }
    for (; number < rail->base.posted && batch->nframes < HETCCL_TCP_BATCH; number++) {
        if (connection->index >= hetccl_tcp_parts(rail, hetccl_tcp_queued(rail, number))) continue;
        if (batch->nbytes >= HETCCL_TCP_PIECE_BYTES) return;
        hetccl_tcp_frame_t frame = hetccl_tcp_frame(connection, number);
        hetccl_tcp_append_frame(connection, batch, &frame, number, 0);
    }
    if (!batch->nframes && rail->ack_now && rail->acked != rail->arrived) {
        hetccl_tcp_frame_t frame = {.kind = HETCCL_TCP_ACK, .ack = (uint32_t)rail->arrived};
        hetccl_tcp_append_frame(connection, batch, &frame, number, 0);
    }
}

/* Takes note of the first nbytes of a batch having gone out. */
static inline void hetccl_tcp_advance(hetccl_tcp_connection_t *connection, const hetccl_tcp_batch_t *batch,
                                      size_t nbytes) {
    hetccl_tcp_rail_t *rail = connection->rail;
    rail->sent_nbytes += nbytes;
    for (int i = 0; i < batch->nframes && nbytes > 0; i++) {
        if (!connection->sent) {
            rail->acked = rail->arrived;
            rail->unacked_nbytes = 0;
            rail->ack_now = 0;
        }
        if (nbytes < batch->left[i]) {
            connection->next = batch->numbers[i];
            connection->out = batch->frames[i];
            connection->sent += nbytes;
            return;
        }
        nbytes -= batch->left[i];
        connection->sent = 0;
        connection->next = batch->numbers[i] + (batch->frames[i].kind == HETCCL_TCP_WRITE);
    }
}

/* Sends what the socket takes, and about a piece at most. Whether anything went out. */
static int hetccl_tcp_send(hetccl_tcp_connection_t *connection) {
    hetccl_tcp_rail_t *rail = connection->rail;
    hetccl_tcp_batch_t batch;
    size_t total = 0;
    while (connection->writable && !rail->ending && total < HETCCL_TCP_PIECE_BYTES) {
        hetccl_tcp_gather(connection, &batch);
        if (!batch.nframes) break;
        struct msghdr message = {.msg_iov = batch.iov, .msg_iovlen = (size_t)batch.niov};
        ssize_t sent = sendmsg(connection->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EINTR) continue;
            connection->writable = 0;
            /* EPIPE says less than the end of the stream or the error that reading will find. */
            if (errno != EAGAIN) hetccl_tcp_end(rail, errno == EPIPE ? 0 : errno);
            break;
        }
        hetccl_tcp_advance(connection, &batch, (size_t)sent);
        total += (size_t)sent;
        if ((size_t)sent < batch.nbytes) connection->writable = 0;
    }
    hetccl_tcp_note_unsent(connection, rail->base.state == HETCCL_RAIL_UP && hetccl_tcp_has_output(connection));
    return total > 0;
}

#endif
