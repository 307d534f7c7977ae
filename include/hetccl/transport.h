/* What a transport offers the executor and the mailbox (layer L2). One link is one direction of one pair of ranks: a
 * FIFO of messages. The users poll; no function here blocks, allocates, takes a lock, or touches Python. Each answers
 * with a positive number (done, or bytes), HETCCL_AGAIN, or a negative fault. A link is used by one thread at a time
 * (the caller's lock). */
#ifndef HETCCL_TRANSPORT_H
#define HETCCL_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

#include "hetccl/layout.h"

enum hetccl_progress {
    HETCCL_MOVED = 2, /* bytes moved, and the message is not finished */
    HETCCL_DONE = 1,
    HETCCL_AGAIN = 0, /* nothing to do until the peer acts */
    HETCCL_EPEER = -1, /* the peer's memory or process is gone */
    HETCCL_ELENGTH = -2, /* the peer sent another length than this rank expects */
    HETCCL_ETAG = -4, /* the peer's message belongs to another collective */
    HETCCL_ESYSTEM = -3, /* a system call failed; msg.error holds errno */
    /* No transport's, but those who use one share these numbers: */
    HETCCL_ENOMEM = -5,
    HETCCL_EBROKEN = -6, /* the communicator has been broken by another fault */
    /* -7: HETCCL_ENETWORK, of rail.h */
    HETCCL_EDIRECT = -8, /* the link cannot reach the GPU's memory; msg.error: enum hetccl_direct */
};

/* POSTED: all of the message is in the link's hands. Of one to send the peer's acknowledgement is missing; of one to
 * receive, bytes that the peer has been asked to write where they belong. */
enum hetccl_msg_state { HETCCL_MSG_NEW = 0, HETCCL_MSG_POSTED = 1, HETCCL_MSG_STREAM = 2 };

/* Flags. SYNC, of a message to send: DONE only when a receive has taken it, however small it is. PAST_CACHE, of one to
 * receive: so much is received that it would leave the cache before it is read. ALL_DEVICES, of one to receive into a
 * GPU's memory: any GPU may read it next, not only its owner. */
enum hetccl_msg_flags { HETCCL_MSG_SYNC = 1, HETCCL_MSG_PAST_CACHE = 2, HETCCL_MSG_ALL_DEVICES = 4 };

/* Memory of a GPU. Its address is a number on purpose: no code that runs on a CPU may follow it. */
typedef struct hetccl_device_memory {
    const struct hetccl_runtime *runtime; /* NULL: there is none, the memory is the host's */
    uintptr_t address;
} hetccl_device_memory_t;

/* One message at one of its ends. Its owner fills ptr, layout, skip, nbytes, tag, flags, or device in place of ptr and
 * layout, and zeroes the rest, which belongs to the link. */
typedef struct hetccl_msg {
    uint8_t *ptr;      /* source, or destination of recv(); NULL where the receiver reads by fetch() */
    const hetccl_layout_t *layout; /* NULL: nbytes contiguous bytes at ptr; else of the elements that begin at ptr */
    size_t skip;       /* with a layout: the message is the bytes [skip, skip + nbytes) of the packed elements */
    size_t nbytes;     /* whole length; on the receiving side, the length expected */
    size_t done;       /* bytes sent, or bytes consumed */
    size_t cell_done;  /* receiver: bytes consumed of the cell at the head */
    uint32_t tag;      /* the user's, or the collective's; a receiver takes no other than this */
    uint32_t flags;    /* enum hetccl_msg_flags */
    int32_t state;     /* enum hetccl_msg_state */
    int32_t slot;      /* sender: of the acknowledgement, from 1; 0: none is needed */
    int32_t error;     /* errno after HETCCL_ESYSTEM; the reason after HETCCL_EDIRECT */
    uint32_t seq;      /* its number on the link, once it is not NEW */
    hetccl_device_memory_t device; /* with a runtime: contiguous there; ptr and layout are NULL */
} hetccl_msg_t;

/* What a link says of the message at its head. */
typedef struct hetccl_header {
    size_t nbytes;
    size_t hold_nbytes; /* buffer that set_aside() needs: nbytes, or 0 where the sender keeps the bytes */
    uint32_t tag;
} hetccl_header_t;

/* A message that was taken out of its link before a receive asked for it. */
typedef struct hetccl_aside {
    uint8_t *buffer;   /* the caller's: hold_nbytes bytes; NULL if that is 0 */
    size_t nbytes;
    size_t done;       /* bytes in buffer */
    uint64_t address;  /* in the sender's memory, if it keeps the bytes */
    uint32_t tag;
    int32_t slot;      /* to acknowledge; 0: none */
} hetccl_aside_t;

typedef struct hetccl_transport {
    const char *name;
    /* Moves as much of the message as goes now. DONE: the source may be overwritten. A message in state POSTED no
     * longer holds up the next one on the link. */
    int (*send)(void *link, hetccl_msg_t *msg);
    /* Moves what has come into msg->ptr, MOVED after a bounded piece. DONE: all nbytes are there. A message in state
     * POSTED no longer holds up the next one on the link: several may be under way, asked after in any order. */
    int (*recv)(void *link, hetccl_msg_t *msg);
    /* Bytes of the message that can be fetched now in one piece, HETCCL_AGAIN if none. */
    int64_t (*available)(void *link, hetccl_msg_t *msg);
    /* The next nbytes (<= available) bytes: in the transport's own memory, or copied to scratch. NULL: see
     * msg->error, which is ESRCH where the peer is gone. Not for messages with a layout. */
    const void *(*fetch)(void *link, hetccl_msg_t *msg, size_t nbytes, void *scratch);
    /* Gives back what fetch() handed out. */
    void (*consume)(void *link, hetccl_msg_t *msg, size_t nbytes);
    /* The message at the head of the link, of which nothing has been received: DONE and what it is, or AGAIN; a fault
     * once nothing can come any more. */
    int (*peek)(void *link, hetccl_header_t *header_p);
    /* Takes the message at the head out of the link, unread where the sender keeps the bytes, else into aside->buffer;
     * the caller sets buffer and zeroes the rest. MOVED, AGAIN: part of it; nothing else may be received from the link
     * before it is DONE. */
    int (*set_aside)(void *link, hetccl_aside_t *aside);
    /* Moves a message that was set aside into msg, as recv(), of which it holds up none; AGAIN: the sender keeps bytes
     * that have not come yet. DONE: it is acknowledged, the buffer is the caller's. */
    int (*recv_aside)(void *link, hetccl_aside_t *aside, hetccl_msg_t *msg);
} hetccl_transport_t;

#endif
