/* A rail: a reliable, ordered way to write into one peer's memory (layer L2). There are two kinds: an RC queue pair
 * (rail_verbs.h), and TCP connections that carry the same RDMA WRITEs (rail_tcp.h). The protocol above (wire_link.h)
 * knows no other difference between them than this table. docs/architecture.md, "Between hosts", has the headers of all
 * of this on one page.
 *
 * Writes of a rail take effect in the order in which they were posted: who has seen the immediate value of one has all
 * bytes of those before it. Nothing here blocks, takes the GIL, or touches Python; the communicator's mutex is held. */
#ifndef HETCCL_RAIL_H
#define HETCCL_RAIL_H

#include <stddef.h>
#include <stdint.h>

#include "hetccl/transport.h"

/* Rails of one peer. */
#define HETCCL_RAILS 4

/* A communicator lost its connection to a peer that may well be alive: see hetccl_rail_t.fault. */
#define HETCCL_ENETWORK (-7)

enum hetccl_rail_state {
    HETCCL_RAIL_NEW = 0,    /* not connected yet */
    HETCCL_RAIL_UP = 1,
    HETCCL_RAIL_FAILED = 2, /* nothing can be posted any more; what was not completed may or may not have arrived */
    HETCCL_RAIL_CLOSED = 3,
};

enum hetccl_rail_fault_kind {
    HETCCL_FAULT_NONE = 0,
    HETCCL_FAULT_WC = 1,     /* code: enum ibv_wc_status */
    HETCCL_FAULT_POST = 2,   /* ibv_post_send or _recv; code: errno */
    HETCCL_FAULT_DEVICE = 3, /* an asynchronous event; code: enum ibv_event_type */
    HETCCL_FAULT_SOCKET = 4, /* code: errno, 0: the peer closed the connection */
    HETCCL_FAULT_WIRE = 5,   /* the peer broke the protocol; code: enum hetccl_wire_breach */
};

typedef struct hetccl_rail_fault {
    int32_t kind;
    int32_t code;
    uint32_t vendor_err; /* of a work completion */
} hetccl_rail_fault_t;

/* Memory as one rail knows it. */
typedef struct hetccl_mem {
    uint32_t lkey;
    uint32_t rkey;
    void *handle; /* what dereg() gives back; the rail's own */
} hetccl_mem_t;

/* ENGINE: it stays mapped until dereg(). USER: it may be unmapped behind our back, so that only memory whose life is
 * known is registered (mr_cache.h). */
enum hetccl_mem_owner { HETCCL_MEM_OF_ENGINE = 0, HETCCL_MEM_OF_USER = 1 };

enum hetccl_write_flags {
    HETCCL_WRITE_IMM = 1,  /* the peer is told `imm` once the bytes are in place */
    HETCCL_WRITE_LAZY = 2, /* nobody waits for its completion, which may be told late; a hint */
    HETCCL_WRITE_DEVICE = 4, /* a piece is a GPU's memory, of which the CPU may copy nothing */
};

/* One RDMA WRITE: up to two pieces of local memory to one place in the peer's. The pieces must stay as they are until
 * the write is completed (hetccl_rail_t.completed). */
typedef struct hetccl_write {
    const void *ptr[2];
    size_t nbytes[2]; /* 0: no such piece; both 0: only `imm` */
    uint32_t lkey[2];
    uint64_t remote_addr;
    uint32_t rkey;
    uint32_t imm;
    uint32_t flags;
} hetccl_write_t;

struct hetccl_rail_ops;
struct hetccl_runtime;
struct hetccl_pointer;

typedef struct hetccl_rail {
    const struct hetccl_rail_ops *ops;
    /* Told of each immediate value that comes in, in the order of the peer's posts; set before the rail is UP. */
    void (*on_imm)(void *peer, int rail, uint32_t imm);
    void *peer;         /* of on_imm: the wire's hetccl_wire_peer_t */
    int32_t index;      /* among the peer's rails */
    int32_t state;      /* enum hetccl_rail_state */
    uint64_t posted;    /* writes that write() has taken */
    uint64_t completed; /* so many of them, the oldest, are in the peer's memory: their pieces are free again */
    hetccl_rail_fault_t fault;
} hetccl_rail_t; /* the first member of the rail's own struct */

typedef struct hetccl_rail_ops {
    const char *name; /* "verbs" | "tcp" */
    /* Largest single write in bytes. */
    size_t max_write;
    /* DONE: taken, as number rail->posted. AGAIN: the send queue is full; poll. ENETWORK: the rail has failed. */
    int (*write)(hetccl_rail_t *rail, const hetccl_write_t *write);
    /* How many write() would take now, at least. */
    int (*room)(hetccl_rail_t *rail);
    /* Keys for the rail's writes from (lkey) and the peer's writes to (rkey) this memory. DONE; or AGAIN: this memory
     * cannot be registered, or not now: go through memory of one's own. whose: enum hetccl_mem_owner. */
    int (*reg)(hetccl_rail_t *rail, void *ptr, size_t nbytes, int whose, hetccl_mem_t *mem);
    /* Only once no write of either side that uses it is under way, or after stop(). */
    void (*dereg)(hetccl_rail_t *rail, hetccl_mem_t *mem);
    /* End it, failed or not: state CLOSED. Afterwards neither side's writes have any effect and no memory of this side
     * is read or written; what came in whole before has been told by on_imm(), or is as if it had not come. Once is
     * enough; not from within on_imm(). */
    void (*stop)(hetccl_rail_t *rail);
    /* The rest is for memory of GPUs; NULL: rails of this kind do not reach it.
     * As reg(), of the whole allocation that the runtime has told `about`. AGAIN: *why_p is why, enum hetccl_direct. */
    int (*reg_device)(hetccl_rail_t *rail, const struct hetccl_runtime *runtime, const struct hetccl_pointer *about,
                      hetccl_mem_t *mem, int *why_p);
    /* The rail by which the device reaches this process's own memory, with the keys that reg() of this rail gives. It
     * outlives the rail, and is the communicator's. NULL: there is none. */
    hetccl_rail_t *(*loop)(hetccl_rail_t *rail);
    /* Of a loop. As write(), the other way: from the place in the peer's memory to ptr[0]. */
    int (*read)(hetccl_rail_t *rail, const hetccl_write_t *write);
    /* Of a loop. Wait, at most for a second, until all that was posted is completed; else stop it. As stop(). */
    void (*settle)(hetccl_rail_t *rail);
} hetccl_rail_ops_t;

/* What a communicator polls for its rails: one port for each RDMA device, one for all TCP connections. */
typedef struct hetccl_port {
    /* Take in what has come (completions, immediate values, bytes): MOVED, or AGAIN. */
    int (*poll)(struct hetccl_port *port);
    /* Before a sleep: from now on `fd` becomes readable when there is something to poll. MOVED: poll first, something
     * may have come meanwhile; DONE: armed. */
    int (*arm)(struct hetccl_port *port);
    int fd;     /* for epoll; it stays the same for the port's life */
    int unsent; /* not 0: writes that were taken are still here, and leave only while poll() is called */
} hetccl_port_t;

#endif
