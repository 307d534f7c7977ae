/* The state of one wire peer (layer L2): its rails, the memory that both sides write to, and the four links.
 *
 * The communicator's mutex guards all of it; nothing here takes a lock, blocks, or touches Python. Memory is taken and
 * given back in wire_memory.h, where a peer is connected; nothing is allocated while messages move. */
#ifndef HETCCL_WIRE_PEER_H
#define HETCCL_WIRE_PEER_H

#include "hetccl/rail.h"
#include "hetccl/wire.h"

/* Chunks of landing memory of a link, and of staging memory of a peer, at most: bits of a word. */
#define HETCCL_WIRE_CHUNKS_MAX 32
/* Messages of a link that the receiver takes piece by piece at once. */
#define HETCCL_WIRE_IN_MAX 16
/* Messages of a link whose pieces the sender is sending at once. A receiver lets go of a message a little before its
 * sender does, so that the sender has room for more of them. */
#define HETCCL_WIRE_OUT_MAX 32
/* A single write is no longer than this, whatever a rail allows. */
#define HETCCL_WIRE_MOST_WRITE ((size_t)1 << 30)

enum hetccl_wire_state {
    HETCCL_WIRE_UNCONNECTED = 0,
    HETCCL_WIRE_WANTED = 1,     /* the connector has been asked to connect */
    HETCCL_WIRE_CONNECTING = 2,
    HETCCL_WIRE_READY = 3,      /* what comes is taken in */
    HETCCL_WIRE_UP = 4,         /* and this side may send */
    HETCCL_WIRE_LOST = 5,       /* the peer has ended: what has arrived is delivered, then HETCCL_EPEER */
    HETCCL_WIRE_FAILED = 6,     /* no rail is left, or the peer cannot be reached: likewise, HETCCL_ENETWORK */
};

/* Where the byte that is read back (wire_device.h) goes: a cache line at the end of a peer's own memory. */
#define HETCCL_WIRE_SINK_BYTES 64

/* How a receive into a GPU's memory is flushed. */
enum hetccl_wire_flush { HETCCL_WIRE_FLUSH_NONE = 0, HETCCL_WIRE_FLUSH_RUNTIME = 1, HETCCL_WIRE_FLUSH_READ = 2 };

/* What all peers of a communicator share. */
typedef struct hetccl_wire {
    hetccl_wire_shape_t shape; /* of the inboxes */
    uint32_t chunk_bytes;      /* of landing and staging memory; a multiple of 64 */
    uint32_t nchunks;          /* landing chunks of a link; a peer's staging memory has twice as many, at most 32 */
    size_t cut_bytes;          /* no part of a piece is made shorter than this to use one more rail; not 0 */
    uint32_t first;            /* number of the first message, cell and CTS entry, on both sides: 0 but in tests */
    int wake_fd;               /* eventfd that wakes the connector, or -1 */
} hetccl_wire_t;

/* A write that has been posted. */
typedef struct hetccl_wire_mark {
    uint64_t number; /* rail->posted after it */
    int32_t rail;    /* from HETCCL_RAILS on: the loop of one; HETCCL_WIRE_NOWHERE: there is none */
} hetccl_wire_mark_t;
#define HETCCL_WIRE_NOWHERE (-1)

enum hetccl_wire_part_state {
    HETCCL_WIRE_PART_OPEN = 0,
    HETCCL_WIRE_PART_FINISHED = 1, /* the last write, with FIN, is posted: `mark` */
    HETCCL_WIRE_PART_DONE = 2,     /* all of it is in the peer's memory */
};

typedef struct hetccl_wire_part {
    size_t begin, nbytes; /* in the piece */
    size_t sent;          /* bytes posted */
    hetccl_wire_mark_t mark;
    int32_t rail;
    int32_t state; /* enum hetccl_wire_part_state */
} hetccl_wire_part_t;

/* A CTS entry of the peer, copied when it came. */
typedef struct hetccl_wire_ask {
    hetccl_wire_cts_t entry;
    hetccl_wire_part_t parts[HETCCL_RAILS];
    int8_t busy;
    int8_t claimed; /* by a message under way */
    int8_t nparts;  /* 0: not begun */
    int8_t next;    /* the message's next ask, or NOWHERE */
} hetccl_wire_ask_t;

/* A message that the peer has asked for. */
typedef struct hetccl_wire_out {
    size_t total;
    size_t asked;    /* bytes that its asks cover so far; they come in order */
    size_t finished; /* bytes of asks that are done */
    uint32_t seq, tag;
    int8_t busy;
    int8_t any;                  /* an ask has been done: so is an empty message */
    int8_t first, last;          /* its asks, or NOWHERE */
    int8_t device;               /* its memory is a GPU's: registered from the first, never staged */
    int8_t in_cell;              /* and small: it goes with the cell at position `cell` */
    uint32_t cell;
    uint64_t last_write[HETCCL_RAILS]; /* number on each rail; 0: none */
    const uint8_t *direct; /* registered: sent from the user's memory, which begins here; NULL: through staging */
    hetccl_mem_t mem[HETCCL_RAILS];
    uint32_t mem_rails; /* bits of the rails that know it */
} hetccl_wire_out_t;

/* One class of traffic to the peer. */
typedef struct hetccl_wire_sender {
    uint32_t seq;          /* of the next new message */
    uint32_t cells_filled; /* position of the next cell to fill */
    uint32_t cells_posted; /* behind cells_filled only while cells are repeated */
    uint32_t cells_known;  /* position of the first cell that may not have arrived, by what resume() was told */
    uint32_t cells_freed;  /* position of the first cell that the peer has not emptied */
    uint32_t asks_arrived; /* position of the peer's next CTS entry */
    uint32_t nwaiting;     /* asks that no message has claimed */
    int32_t ngathered;     /* messages that are in_cell */
    uint32_t gathered_until; /* position behind the last cell whose payload nobody has any more */
    hetccl_wire_mark_t *cell_marks; /* last write from each of the mirror's cells */
    hetccl_wire_ask_t asks[HETCCL_WIRE_CTS_MAX];
    hetccl_wire_out_t outs[HETCCL_WIRE_OUT_MAX];
} hetccl_wire_sender_t;

/* A CTS entry of this side that is not finished, at its position modulo their number. */
typedef struct hetccl_wire_slot {
    size_t nbytes;
    uint32_t position;
    int8_t busy;
    int8_t in;    /* index of the message */
    int8_t chunk; /* landing chunk, or NOWHERE */
    int8_t parts; /* as the peer has cut the piece; 0: nothing has come */
    uint8_t mask; /* parts that are in place */
} hetccl_wire_slot_t;

/* A message that this side asks for piece by piece. */
typedef struct hetccl_wire_in {
    size_t total;
    size_t asked;    /* bytes */
    size_t finished; /* bytes that are in place, in the user's memory or in chunks */
    uint32_t seq, tag;
    int8_t busy;
    int8_t any;      /* a CTS entry has been sent: all that an empty message needs */
    int8_t all;      /* everything is in place */
    int8_t unseen;   /* asked for before its cell came */
    int32_t fault;   /* the peer sent something else: HETCCL_ETAG or HETCCL_ELENGTH */
    uint8_t *direct; /* registered: it lands in the user's memory, which begins here; NULL: in chunks */
    hetccl_mem_t mem[HETCCL_RAILS];
    uint32_t mem_rails;
    int8_t chunks[HETCCL_WIRE_CHUNKS_MAX]; /* its landing chunks in the order of the bytes, from `first_chunk` on */
    uint8_t first_chunk, nchunks;
    /* A GPU's memory, at `direct`; see wire_device.h */
    const struct hetccl_runtime *runtime; /* NULL: the host's */
    int32_t device, scope;
    int8_t flush;    /* enum hetccl_wire_flush */
    int8_t carried;  /* it has come eagerly, and the loop of rail `carrier` carries it over */
    int8_t carrier;
    uint8_t came;    /* bits of the rails whose devices have written */
    uint8_t reading; /* bits of those that have been asked to read back: number read_number[i] of the loop */
    uint64_t read_number[HETCCL_RAILS];
    uint64_t carry_number; /* the last of what carries it over */
} hetccl_wire_in_t;

/* One class of traffic from the peer. */
typedef struct hetccl_wire_receiver {
    uint32_t seq;            /* of the next message that no receive has begun */
    uint32_t cell_seq;       /* cells to come bear this number or a later one */
    uint32_t cells_arrived;  /* position of the next cell to come */
    uint32_t cells_emptied;  /* of the cell at the head */
    uint32_t cells_told;     /* as the peer knows it */
    uint32_t cts_filled;     /* position of the next CTS entry */
    uint32_t cts_posted;     /* behind cts_filled only while entries are repeated */
    uint32_t cts_known;      /* as cells_known */
    int8_t credit_again;     /* the last credit may not have arrived */
    int8_t has_head;         /* `head` is the checked header of the cell at the head */
    hetccl_wire_cell_t head;
    hetccl_wire_mark_t cts_marks[HETCCL_WIRE_CTS_MAX]; /* last write from each of the mirror's entries */
    hetccl_wire_slot_t slots[HETCCL_WIRE_CTS_MAX];
    hetccl_wire_in_t ins[HETCCL_WIRE_IN_MAX];
    uint8_t *landing;
    uint32_t chunks_busy;                          /* bits */
    int8_t chunk_here[HETCCL_WIRE_CHUNKS_MAX];     /* the chunk's bytes are in place */
    size_t chunk_nbytes[HETCCL_WIRE_CHUNKS_MAX];
} hetccl_wire_receiver_t;

/* For the tests and for doctor. */
typedef struct hetccl_wire_counters {
    uint64_t eager, rts, cts, credits;       /* writes of each kind, repeats included */
    uint64_t direct_out, staged_out;         /* bytes sent from the user's memory, through staging */
    uint64_t direct_in, landed_in;           /* bytes asked for into the user's memory, into chunks */
    uint64_t gathered_out, carried_in;       /* eager bytes from a GPU's memory, and into one */
    uint64_t flushes, read_backs;            /* by the runtime; by a loop */
    uint64_t writes[HETCCL_RAILS], bytes[HETCCL_RAILS]; /* posted on each rail */
} hetccl_wire_counters_t;

struct hetccl_wire_peer;

/* A link of hetccl_wire_transport: one direction of one class. */
typedef struct hetccl_wire_link {
    struct hetccl_wire_peer *peer;
    int32_t cls;
} hetccl_wire_link_t;

/* What grows with the peers that are used: exists from open() to close(). */
typedef struct hetccl_wire_tables {
    hetccl_wire_sender_t senders[HETCCL_WIRE_CLASSES];
    hetccl_wire_receiver_t receivers[HETCCL_WIRE_CLASSES];
    hetccl_wire_mark_t staging_marks[HETCCL_WIRE_CHUNKS_MAX]; /* last write from each chunk */
    uint64_t looped[HETCCL_RAILS]; /* the last number on each rail's loop that is this peer's */
    hetccl_wire_counters_t counters;
} hetccl_wire_tables_t;

typedef struct hetccl_wire_peer {
    hetccl_wire_t *wire;
    int rank;
    int32_t state;   /* enum hetccl_wire_state */
    hetccl_wire_link_t links[HETCCL_WIRE_CLASSES][2]; /* [class][send 0 | receive 1] */
    hetccl_rail_t *rails[HETCCL_RAILS];  /* NULL: none, or closed */
    hetccl_rail_t *loops[HETCCL_RAILS];  /* theirs, once a GPU's memory has been named; they outlive the rails */
    int32_t nrails;
    int32_t carrier;     /* the rail of cells, CTS entries and credits */
    uint32_t failed;     /* bits of the rails that were found failed and are not resumed yet: nothing is sent */
    uint32_t untold;     /* bits of those that the connector has not heard of */
    int8_t quiet;        /* all rails are stopped and the user's memory is let go */
    uint8_t *own;        /* inbox, landing of both classes, staging, sink; one registration for each rail */
    size_t own_nbytes;
    uint8_t *staging;
    hetccl_mem_t own_mem[HETCCL_RAILS];
    uint8_t *mirror;     /* of the peer's inbox: what is written there comes from the same place here */
    size_t mirror_nbytes;
    hetccl_mem_t mirror_mem[HETCCL_RAILS];
    uint64_t remote_address; /* of the peer's inbox */
    hetccl_wire_shape_t remote_shape;
    uint32_t remote_rkey[HETCCL_RAILS];
    hetccl_wire_tables_t *tables;
} hetccl_wire_peer_t;

/* A CTS entry of this side whose piece is not complete. */
typedef struct hetccl_wire_open {
    uint32_t position;
    uint32_t parts; /* as the first FIN said; 0: none has come */
    uint32_t mask;  /* parts that are in place */
} hetccl_wire_open_t;

/* What one side has got, for the other to know what to repeat when a rail has failed. */
typedef struct hetccl_wire_arrived {
    uint32_t cells[HETCCL_WIRE_CLASSES]; /* position of the next cell to come */
    uint32_t cts[HETCCL_WIRE_CLASSES];   /* position of the next CTS entry to come */
    uint32_t nopen[HETCCL_WIRE_CLASSES];
    hetccl_wire_open_t open[HETCCL_WIRE_CLASSES][HETCCL_WIRE_CTS_MAX]; /* all others that were sent are complete */
} hetccl_wire_arrived_t;

#endif
