/* The wire transport (layer L2): hetccl_transport_t to one peer over its rails. The document of what passes between
 * the two sides is docs/wire-protocol.md, the memory it passes through is in wire.h. */
#ifndef HETCCL_WIRE_LINK_H
#define HETCCL_WIRE_LINK_H

#include "hetccl/wire_peer.h"

#endif
