/* A rail over TCP (layer L2): its frames and its state. The RDMA WRITEs of a rail travel as frames over all of the
 * rail's connections; tcp_send.h cuts and sends them, tcp_receive.h puts the bytes in place, rail_tcp.h is the rail.
 *
 * A frame is 32 bytes, little endian, and `nbytes` of payload behind it:
 *
 *   offset  0 kind u8 | 1 flags u8 | 2 parts u16 | 4 sequence u32 | 8 remote_addr u64 | 16 rkey u32 | 20 nbytes u32 |
 *          24 imm u32 | 28 ack u32
 *
 * WRITE: a write, or one of the `parts` that it was cut into, each over another connection. `sequence` numbers the
 * writes of the rail from 0, modulo 2^32. A write has arrived when all its parts are in place and the writes before it
 * have arrived; then its immediate value is told. `ack`, in every frame: so many writes of the other direction have
 * arrived, modulo 2^32. ACK: brings nothing but this, the rest of it is 0. A sender has at most HETCCL_TCP_DEPTH
 * writes that are not acknowledged. */
#ifndef HETCCL_TCP_STATE_H
#define HETCCL_TCP_STATE_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "hetccl/rail.h"
#include "hetccl/wire.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "frames are structs as they lie in memory: the wire's byte order is little endian"
#endif

#define HETCCL_TCP_VERSION 1
#define HETCCL_TCP_DEPTH 256 /* writes on their way; a power of two */
#define HETCCL_TCP_CONNECTIONS 16
#define HETCCL_TCP_MAX_WRITE ((size_t)4 << 20)
/* A part is about so long, or longer: below, a second connection costs more than it saves (docs/performance.md). */
#define HETCCL_TCP_PART_BYTES ((size_t)256 << 10)
#define HETCCL_TCP_PART_ALIGN ((size_t)4096)
/* One system call moves about so much at most, and one poll of a connection little more: others wait for the mutex. */
#define HETCCL_TCP_PIECE_BYTES ((size_t)1 << 20)
/* Where headers and small payloads are read to, many by one system call. */
#define HETCCL_TCP_BUFFER_BYTES ((size_t)32 << 10)
/* A lazy write is acknowledged by the next frame that goes out anyway, or after so many writes, bytes, or polls in
 * which nothing came. */
#define HETCCL_TCP_LAZY_WRITES 64
#define HETCCL_TCP_LAZY_BYTES ((size_t)256 << 10)
#define HETCCL_TCP_LAZY_POLLS 32
#define HETCCL_TCP_EVENTS 64

enum hetccl_tcp_kind { HETCCL_TCP_WRITE = 1, HETCCL_TCP_ACK = 2 };
enum hetccl_tcp_flags { HETCCL_TCP_IMM = HETCCL_WRITE_IMM, HETCCL_TCP_LAZY = HETCCL_WRITE_LAZY };

typedef struct hetccl_tcp_frame {
    uint8_t kind;  /* enum hetccl_tcp_kind */
    uint8_t flags; /* enum hetccl_tcp_flags */
    uint16_t parts;
    uint32_t sequence;
    uint64_t remote_addr; /* of the payload's first byte */
    uint32_t rkey;
    uint32_t nbytes;
    uint32_t imm; /* the same in all parts */
    uint32_t ack;
} hetccl_tcp_frame_t;

_Static_assert(sizeof(hetccl_tcp_frame_t) == 32, "a frame's header has no padding");

/* Memory that the peer of one rail may write to. A key names the region and how often its place in the table has been
 * given away, so that the key of memory that has been given back fits nothing. */
typedef struct hetccl_tcp_region {
    uint8_t *base; /* NULL: free */
    size_t nbytes;
    const void *rail;
    uint16_t generation;
    uint16_t next_free;
} hetccl_tcp_region_t;

struct hetccl_tcp_rail;

typedef struct hetccl_tcp_connection {
    struct hetccl_tcp_rail *rail;
    int fd;
    int index;
    int8_t writable; /* the socket took all of what it was given last */
    int8_t readable; /* there may be something to read */
    int8_t closing;  /* the end of the stream has been announced: read until it comes */
    int8_t ended;    /* nothing is read any more */
    int8_t unsent;   /* counts in the port's `unsent` */
    /* Sending: */
    uint64_t next;          /* the number of the next write to send here */
    size_t sent;            /* of the frame under way, header included; 0: none is */
    hetccl_tcp_frame_t out; /* its header */
    /* Receiving: */
    hetccl_tcp_frame_t in; /* the header under way, or that of the payload under way */
    size_t in_nbytes;      /* of the header, so far */
    uint8_t *dst;          /* where the payload goes on */
    size_t left;           /* of the payload; 0: a header is next */
} hetccl_tcp_connection_t;

/* A write of the peer that has begun to come and has not arrived. */
typedef struct hetccl_tcp_incoming {
    uint32_t imm;
    uint16_t parts; /* 0: nothing has come */
    uint16_t begun;
    uint16_t done;
    uint8_t flags;
} hetccl_tcp_incoming_t;

struct hetccl_tcp_port;

typedef struct hetccl_tcp_rail {
    hetccl_rail_t base;
    struct hetccl_tcp_port *port;
    struct hetccl_tcp_rail *next_active;
    int active; /* in the port's list */
    int nconnections;
    int ending;     /* a connection has ended: what has come on the others is taken in, then the rail fails */
    int end_error;  /* errno; 0: the peer closed */
    int ack_now;    /* the peer waits for an acknowledgement */
    int idle_polls; /* in which nothing came */
    uint64_t arrived;
    uint64_t acked; /* of `arrived`, told to the peer */
    size_t unacked_nbytes;
    uint64_t received_nbytes;
    uint64_t sent_nbytes;
    hetccl_tcp_connection_t connections[HETCCL_TCP_CONNECTIONS];
    hetccl_tcp_incoming_t incoming[HETCCL_TCP_DEPTH];
    hetccl_write_t writes[HETCCL_TCP_DEPTH];
} hetccl_tcp_rail_t;

typedef struct hetccl_tcp_port {
    hetccl_port_t base; /* fd: the epoll */
    hetccl_tcp_rail_t *active; /* those with something to do that needs no event */
    hetccl_tcp_region_t *regions;
    uint32_t nregions;
    /* Free regions, taken from the front and given back at the end: a generation comes back as late as can be. */
    uint16_t first_free;
    uint16_t last_free;
    uint32_t nfree;
    uint8_t buffer[HETCCL_TCP_BUFFER_BYTES];
} hetccl_tcp_port_t;

static inline void hetccl_tcp_activate(hetccl_tcp_rail_t *rail) {
    if (rail->active) return;
    rail->active = 1;
    rail->next_active = rail->port->active;
    rail->port->active = rail;
}

static inline void hetccl_tcp_note_unsent(hetccl_tcp_connection_t *connection, int8_t unsent) {
    connection->rail->port->base.unsent += unsent - connection->unsent;
    connection->unsent = unsent;
}

static inline void hetccl_tcp_forget_unsent(hetccl_tcp_rail_t *rail) {
    for (int i = 0; i < rail->nconnections; i++) hetccl_tcp_note_unsent(&rail->connections[i], 0);
}

static inline void hetccl_tcp_fail(hetccl_tcp_rail_t *rail, int kind, int code) {
    if (rail->base.state != HETCCL_RAIL_UP) return;
    rail->base.state = HETCCL_RAIL_FAILED;
    rail->base.fault = (hetccl_rail_fault_t){.kind = kind, .code = code};
    for (int i = 0; i < rail->nconnections; i++) shutdown(rail->connections[i].fd, SHUT_RDWR);
    hetccl_tcp_forget_unsent(rail);
}

static inline void hetccl_tcp_breach(hetccl_tcp_rail_t *rail) {
    hetccl_tcp_fail(rail, HETCCL_FAULT_WIRE, HETCCL_BREACH_FRAME);
}

/* A connection is broken. What the peer sent before may lie in the others, so that they are read once more. */
static inline void hetccl_tcp_end(hetccl_tcp_rail_t *rail, int error) {
    rail->ending = 1;
    if (!rail->end_error) rail->end_error = error;
    for (int i = 0; i < rail->nconnections; i++) rail->connections[i].readable = 1;
    hetccl_tcp_activate(rail);
}

static inline uint32_t hetccl_tcp_key(const hetccl_tcp_port_t *port, uint32_t index) {
    return (uint32_t)port->regions[index].generation << 16 | index;
}

/* The memory of nbytes bytes at `address`, if the key offers all of it to this rail's peer; else NULL. */
static inline uint8_t *hetccl_tcp_offered(const hetccl_tcp_rail_t *rail, uint32_t rkey, uint64_t address,
                                          size_t nbytes) {
    const hetccl_tcp_port_t *port = rail->port;
    uint32_t index = rkey & 0xffff;
    if (index >= port->nregions || hetccl_tcp_key(port, index) != rkey) return NULL;
    const hetccl_tcp_region_t *region = &port->regions[index];
    if (!region->base || region->rail != rail) return NULL;
    uint64_t base = (uint64_t)(uintptr_t)region->base;
    if (address < base || address - base > region->nbytes || nbytes > region->nbytes - (address - base)) return NULL;
    return region->base + (address - base);
}

/* DONE, or AGAIN: no memory for a larger table, or it is as large as a key can name. */
static inline int hetccl_tcp_grow(hetccl_tcp_port_t *port) {
    uint32_t before = port->nregions, after = before ? 2 * before : 64;
    if (before == UINT32_C(1) << 16) return HETCCL_AGAIN;
    hetccl_tcp_region_t *regions = realloc(port->regions, after * sizeof(*regions));
    if (!regions) return HETCCL_AGAIN;
    memset(regions + before, 0, (after - before) * sizeof(*regions));
    for (uint32_t i = before; i < after; i++) regions[i].next_free = (uint16_t)(i + 1);
    port->regions = regions;
    port->nregions = after;
    port->first_free = (uint16_t)before;
    port->last_free = (uint16_t)(after - 1);
    port->nfree = after - before;
    return HETCCL_DONE;
}

/* Any memory that the processor can read and write; whose it is does not matter, since nothing is pinned. */
static int hetccl_tcp_reg(hetccl_rail_t *base, void *ptr, size_t nbytes, int whose, hetccl_mem_t *mem) {
    hetccl_tcp_rail_t *rail = (hetccl_tcp_rail_t *)base;
    hetccl_tcp_port_t *port = rail->port;
    (void)whose;
    if (!ptr || (!port->nfree && hetccl_tcp_grow(port) != HETCCL_DONE)) return HETCCL_AGAIN;
    uint32_t index = port->first_free;
    hetccl_tcp_region_t *region = &port->regions[index];
    port->first_free = region->next_free;
    port->nfree -= 1;
    region->base = ptr;
    region->nbytes = nbytes;
    region->rail = rail;
    *mem = (hetccl_mem_t){0, hetccl_tcp_key(port, index), (void *)(uintptr_t)(index + 1)};
    return HETCCL_DONE;
}

static inline void hetccl_tcp_free_region(hetccl_tcp_port_t *port, uint32_t index) {
    hetccl_tcp_region_t *region = &port->regions[index];
    region->base = NULL;
    region->rail = NULL;
    region->generation += 1;
    if (port->nfree) {
        port->regions[port->last_free].next_free = (uint16_t)index;
    } else {
        port->first_free = (uint16_t)index;
    }
    port->last_free = (uint16_t)index;
    port->nfree += 1;
}

static void hetccl_tcp_dereg(hetccl_rail_t *base, hetccl_mem_t *mem) {
    if (!mem->handle) return;
    hetccl_tcp_free_region(((hetccl_tcp_rail_t *)base)->port, (uint32_t)(uintptr_t)mem->handle - 1);
    mem->handle = NULL;
}

#endif
