/* The wire protocol of two ranks (layer L2): what lies in the memory that each lets the other write to. The document
 * is docs/wire-protocol.md; wire_link.h says where its code is.
 *
 * Each rank has an inbox for each peer, which the peer alone writes by RDMA WRITE. In it, for each of two classes of
 * traffic (0 collectives, 1 point to point): a ring of cells and a ring of clear-to-send entries. A message of up to a
 * cell's payload goes eagerly into the next cell. A larger one, or a synchronous one, is announced by a cell of kind
 * RTS, unless the receiver has asked for it already (class 0 only, and only for more than a cell's payload); the
 * receiver answers with CTS entries, each for one piece of the message, and the sender writes the piece straight to the
 * address in it, spread over the rails, the last write of each part with an immediate value FIN. Every write that the
 * other side must notice carries an immediate value; all bytes of it, and of the writes before it on the rail, are in
 * place then. Cells, CTS entries and credits of a pair all go over one rail, the first that is up. Little endian
 * throughout.
 *
 * A message that differs in tag or length from what the receiver asked for beforehand is sent as if it had not been
 * asked for; the CTS entries for it are void, and bring no FIN. */
#ifndef HETCCL_WIRE_H
#define HETCCL_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "hetccl/rail.h"

#define HETCCL_WIRE_CLASSES 2
#define HETCCL_WIRE_ALIGN 32   /* the payload of a cell begins at such a multiple */
#define HETCCL_WIRE_CTS_MAX 64 /* CTS entries of a class that are not finished yet */

enum hetccl_wire_kind { HETCCL_WIRE_EAGER = 1, HETCCL_WIRE_RTS = 2 };

/* The last bytes of a cell. The payload ends where the header begins, rounded up to HETCCL_WIRE_ALIGN: one write from
 * the payload's begin to the header's end brings both. */
typedef struct hetccl_wire_cell {
    uint64_t nbytes;   /* of the message; EAGER: also of the payload */
    uint32_t seq;      /* number of the message among those of its class in this direction, from 0, modulo 2^32 */
    uint32_t tag;
    uint32_t position; /* number of the cell among those of its ring, from 0, modulo 2^32 */
    uint16_t kind;     /* enum hetccl_wire_kind */
    uint16_t flags;    /* 0 */
    uint64_t reserved; /* 0 */
} hetccl_wire_cell_t;

/* A receiver's request for one piece of a message; the message's pieces are asked for in order and cover it. */
typedef struct hetccl_wire_cts {
    uint64_t address;  /* where the piece belongs, in the receiver's memory */
    uint64_t offset;   /* of the piece in the message */
    uint64_t nbytes;   /* of the piece; 0 only for an empty message, whose FIN comes alone */
    uint64_t total;    /* of the message, as the receiver expects it */
    uint32_t seq;      /* the message's number */
    uint32_t tag;      /* the message's, as the receiver expects it */
    uint32_t position; /* number of the entry among those of its class, from 0, modulo 2^32 */
    uint32_t reserved; /* 0 */
    uint32_t rkey[HETCCL_RAILS]; /* of the address on each rail */
} hetccl_wire_cts_t;

/* Immediate value: kind 2 bits | class 1 | parts - 1 2 | part 2 | value 25. CELL, CTS: value is the position of the
 * cell or entry, which is in place. CREDIT: value is the position of the first cell that the peer has not emptied; such
 * a write brings nothing else. FIN: `part` of `parts` of the piece that the CTS entry at position `value` asked for is
 * in place; how the piece is cut is the sender's affair. */
enum hetccl_wire_imm_kind {
    HETCCL_IMM_CELL = 0,
    HETCCL_IMM_CTS = 1,
    HETCCL_IMM_FIN = 2,
    HETCCL_IMM_CREDIT = 3,
};
#define HETCCL_IMM_VALUE_BITS 25
#define HETCCL_IMM_VALUE_MASK ((UINT32_C(1) << HETCCL_IMM_VALUE_BITS) - 1)
#define HETCCL_IMM(kind, cls, parts, part, value) \
    ((uint32_t)(kind) << 30 | (uint32_t)(cls) << 29 | ((uint32_t)(parts) - 1) << 27 | (uint32_t)(part) << 25 | \
     ((uint32_t)(value) & HETCCL_IMM_VALUE_MASK))
#define HETCCL_IMM_KIND(imm) ((imm) >> 30)
#define HETCCL_IMM_CLASS(imm) ((imm) >> 29 & 1)
#define HETCCL_IMM_PARTS(imm) (((imm) >> 27 & 3) + 1)
#define HETCCL_IMM_PART(imm) ((imm) >> 25 & 3)
#define HETCCL_IMM_VALUE(imm) ((imm) & HETCCL_IMM_VALUE_MASK)

/* Which rule a peer has broken; the connection is given up. */
enum hetccl_wire_breach {
    HETCCL_BREACH_CELL = 1, /* a cell's header contradicts itself or the ring */
    HETCCL_BREACH_CTS = 2,
    HETCCL_BREACH_FIN = 3,
    HETCCL_BREACH_CREDIT = 4, /* more is emptied than was filled */
    HETCCL_BREACH_FRAME = 5,  /* tcp: a write to memory that was not offered, or a frame too long */
};

/* The geometry of an inbox; its owner chooses it and tells the peer. */
typedef struct hetccl_wire_shape {
    uint32_t ncells;     /* of a ring; a power of two */
    uint32_t cell_bytes; /* payload and header; a multiple of HETCCL_WIRE_CELL_UNIT */
} hetccl_wire_shape_t;

#define HETCCL_WIRE_CELLS_MIN 2
#define HETCCL_WIRE_CELLS_MAX 1024
#define HETCCL_WIRE_CELL_BYTES_MIN 128
#define HETCCL_WIRE_CELL_BYTES_MAX 1048576
#define HETCCL_WIRE_CELL_UNIT 64 /* a cache line */

static inline int hetccl_wire_shape_is_good(const hetccl_wire_shape_t *shape) {
    if (shape->ncells < HETCCL_WIRE_CELLS_MIN || shape->ncells > HETCCL_WIRE_CELLS_MAX) return 0;
    if (shape->cell_bytes < HETCCL_WIRE_CELL_BYTES_MIN || shape->cell_bytes > HETCCL_WIRE_CELL_BYTES_MAX) return 0;
    return (shape->ncells & (shape->ncells - 1)) == 0 && shape->cell_bytes % HETCCL_WIRE_CELL_UNIT == 0;
}

/* Layout of an inbox: for each class HETCCL_WIRE_CTS_MAX entries | padding to a page | for each class the cells. An
 * entry or cell lies at its position modulo the number of them. */
static inline size_t hetccl_wire_cts_at(int cls) {
    return sizeof(hetccl_wire_cts_t) * HETCCL_WIRE_CTS_MAX * (size_t)cls;
}
static inline size_t hetccl_wire_cells_at(const hetccl_wire_shape_t *shape, int cls) {
    size_t head = (hetccl_wire_cts_at(HETCCL_WIRE_CLASSES) + 4095) / 4096 * 4096;
    return head + (size_t)cls * shape->ncells * shape->cell_bytes;
}
static inline size_t hetccl_wire_inbox_bytes(const hetccl_wire_shape_t *shape) {
    return (hetccl_wire_cells_at(shape, HETCCL_WIRE_CLASSES) + 4095) / 4096 * 4096;
}
static inline size_t hetccl_wire_payload_bytes(const hetccl_wire_shape_t *shape) {
    return shape->cell_bytes - sizeof(hetccl_wire_cell_t);
}

#endif
