/* What a transport offers the executor (layer L2). One link is one direction of one pair of ranks: a FIFO of messages.
 * The executor polls; no function here blocks, allocates, takes a lock, or touches Python. Each answers with a positive
 * number (done, or bytes), HETCCL_AGAIN, or a negative fault. A link is used by one thread at a time (the caller's
 * lock). */
#ifndef HETCCL_TRANSPORT_H
#define HETCCL_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

enum hetccl_progress {
    HETCCL_MOVED = 2, /* bytes moved, and the message is not finished */
    HETCCL_DONE = 1,
    HETCCL_AGAIN = 0, /* nothing to do until the peer acts */
    HETCCL_EPEER = -1, /* the peer's memory or process is gone */
    HETCCL_ELENGTH = -2, /* the peer sent another length than this rank expects */
    HETCCL_ESYSTEM = -3, /* a system call failed; msg.error holds errno */
};

enum hetccl_msg_state { HETCCL_MSG_NEW = 0, HETCCL_MSG_POSTED = 1, HETCCL_MSG_STREAM = 2 };

/* One message at one of its ends. The executor owns it and fills ptr, nbytes, tag; the rest belongs to the link. */
typedef struct hetccl_msg {
    uint8_t *ptr;      /* source, or destination of recv(); NULL where the receiver reads by fetch() */
    size_t nbytes;     /* whole length; on the receiving side, the length expected */
    size_t done;       /* bytes sent, or bytes consumed */
    uint64_t cell;     /* sender, posted: the ring position whose release means "consumed" */
    size_t cell_done;  /* receiver: bytes consumed of the cell at the head */
    uint32_t tag;      /* point to point only; 0 in collectives */
    int32_t state;     /* enum hetccl_msg_state */
    int32_t error;     /* errno after HETCCL_ESYSTEM */
} hetccl_msg_t;

typedef struct hetccl_transport {
    const char *name;
    /* Moves as much of the message as goes now. DONE: the source may be overwritten. A message in state POSTED no
     * longer holds up the next one on the link. */
    int (*send)(void *link, hetccl_msg_t *msg);
    /* Moves what has come into msg->ptr, MOVED after a bounded piece. DONE: all nbytes are there. */
    int (*recv)(void *link, hetccl_msg_t *msg);
    /* Bytes of the message that can be fetched now in one piece, HETCCL_AGAIN if none. */
    int64_t (*available)(void *link, hetccl_msg_t *msg);
    /* The next nbytes (<= available) bytes: in the transport's own memory, or copied to scratch. NULL: see
     * msg->error. */
    const void *(*fetch)(void *link, hetccl_msg_t *msg, size_t nbytes, void *scratch);
    /* Gives back what fetch() handed out. */
    void (*consume)(void *link, hetccl_msg_t *msg, size_t nbytes);
    /* The message at the head of the link: DONE and its length and tag, or AGAIN. */
    int (*peek)(void *link, size_t *nbytes_p, uint32_t *tag_p);
} hetccl_transport_t;

#endif
