/* Rails over TCP (layer L2): the table of rail.h, and the port that all TCP rails of a communicator share.
 *
 * Sockets are watched edge-triggered, so that the kernel is asked once whether it will take or give more, and told
 * nothing when this changes: a connection's `readable` and `writable` hold until the socket itself says otherwise. */
#ifndef HETCCL_RAIL_TCP_H
#define HETCCL_RAIL_TCP_H

#include "hetccl/tcp_receive.h"

static int hetccl_tcp_write(hetccl_rail_t *base, const hetccl_write_t *write) {
    hetccl_tcp_rail_t *rail = (hetccl_tcp_rail_t *)base;
    if (base->state != HETCCL_RAIL_UP) return HETCCL_ENETWORK;
    if (base->posted - base->completed >= HETCCL_TCP_DEPTH) return HETCCL_AGAIN;
    rail->writes[base->posted & (HETCCL_TCP_DEPTH - 1)] = *write;
    base->posted += 1;
    int parts = hetccl_tcp_parts(rail, write);
    for (int i = 0; i < parts; i++) {
        hetccl_tcp_connection_t *connection = &rail->connections[i];
        hetccl_tcp_send(connection);
        if (connection->writable && hetccl_tcp_has_output(connection)) hetccl_tcp_activate(rail);
    }
    return HETCCL_DONE;
}

static int hetccl_tcp_room(hetccl_rail_t *base) { return HETCCL_TCP_DEPTH - (int)(base->posted - base->completed); }

/* What is not read yet has not come. Afterwards the port knows nothing of the rail, which can be closed without the
 * mutex. The sockets stay open till then: the peer is to hear first why. */
static void hetccl_tcp_stop(hetccl_rail_t *base) {
    hetccl_tcp_rail_t *rail = (hetccl_tcp_rail_t *)base;
    base->state = HETCCL_RAIL_CLOSED;
    hetccl_tcp_forget_unsent(rail);
    for (hetccl_tcp_rail_t **at = &rail->port->active; *at; at = &(*at)->next_active) {
        if (*at == rail) {
            *at = rail->next_active;
            break;
        }
    }
    rail->active = 0;
    for (int i = 0; i < rail->nconnections; i++) {
        epoll_ctl(rail->port->base.fd, EPOLL_CTL_DEL, rail->connections[i].fd, NULL);
    }
}

static const hetccl_rail_ops_t hetccl_tcp_rail_ops = {
    .name = "tcp",
    .max_write = HETCCL_TCP_MAX_WRITE,
    .write = hetccl_tcp_write,
    .room = hetccl_tcp_room,
    .reg = hetccl_tcp_reg,
    .dereg = hetccl_tcp_dereg,
    .stop = hetccl_tcp_stop,
};

/* Sends an acknowledgement that is due, over the first connection that can take it. */
static inline int hetccl_tcp_acknowledge(hetccl_tcp_rail_t *rail) {
    if (rail->acked == rail->arrived) return 0;
    if (rail->arrived - rail->acked >= HETCCL_TCP_LAZY_WRITES || rail->unacked_nbytes >= HETCCL_TCP_LAZY_BYTES ||
        rail->idle_polls >= HETCCL_TCP_LAZY_POLLS) {
        rail->ack_now = 1;
    }
    for (int i = 0; rail->ack_now && i < rail->nconnections; i++) {
        if (!rail->connections[i].sent) hetccl_tcp_send(&rail->connections[i]);
    }
    return rail->acked == rail->arrived;
}

/* Whether there is something to do that no event will announce. */
static inline int hetccl_tcp_has_work(hetccl_tcp_rail_t *rail) {
    for (int i = 0; i < rail->nconnections; i++) {
        hetccl_tcp_connection_t *connection = &rail->connections[i];
        if (connection->readable && !connection->ended) return 1;
        if (connection->writable && !rail->ending && hetccl_tcp_has_output(connection)) return 1;
    }
    return 0;
}

/* Does what is to be done on a rail now: whether anything moved. */
static inline int hetccl_tcp_visit(hetccl_tcp_rail_t *rail) {
    int came = 0, went = 0, nended = 0;
    for (int i = 0; i < rail->nconnections; i++) came |= hetccl_tcp_receive(&rail->connections[i]);
    for (int i = 0; i < rail->nconnections; i++) nended += rail->connections[i].ended;
    if (nended == rail->nconnections) hetccl_tcp_fail(rail, HETCCL_FAULT_SOCKET, rail->end_error);
    if (rail->base.state != HETCCL_RAIL_UP) return 1;
    for (int i = 0; i < rail->nconnections; i++) went |= hetccl_tcp_send(&rail->connections[i]);
    rail->idle_polls = came ? 0 : rail->idle_polls + 1;
    hetccl_tcp_acknowledge(rail);
    if (rail->acked != rail->arrived || hetccl_tcp_has_work(rail)) hetccl_tcp_activate(rail);
    return came | went;
}

static void hetccl_tcp_take_events(hetccl_tcp_port_t *port) {
    struct epoll_event events[HETCCL_TCP_EVENTS];
    int nevents = epoll_wait(port->base.fd, events, HETCCL_TCP_EVENTS, 0);
    for (int i = 0; i < nevents; i++) {
        hetccl_tcp_connection_t *connection = events[i].data.ptr;
        if (events[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) connection->readable = 1;
        if (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) connection->closing = 1;
        if (events[i].events & EPOLLOUT) connection->writable = 1;
        hetccl_tcp_activate(connection->rail);
    }
}

static int hetccl_tcp_poll(hetccl_port_t *base) {
    hetccl_tcp_port_t *port = (hetccl_tcp_port_t *)base;
    int moved = 0;
    hetccl_tcp_take_events(port);
    hetccl_tcp_rail_t *rail = port->active;
    port->active = NULL;
    while (rail) {
        hetccl_tcp_rail_t *next = rail->next_active;
        rail->active = 0;
        if (rail->base.state == HETCCL_RAIL_UP) moved |= hetccl_tcp_visit(rail);
        rail = next;
    }
    return moved ? HETCCL_MOVED : HETCCL_AGAIN;
}

/* The peer must not wait for acknowledgements while this side sleeps. */
static int hetccl_tcp_arm(hetccl_port_t *base) {
    hetccl_tcp_port_t *port = (hetccl_tcp_port_t *)base;
    int busy = 0;
    for (hetccl_tcp_rail_t *rail = port->active; rail; rail = rail->next_active) {
        if (rail->base.state != HETCCL_RAIL_UP) continue;
        rail->idle_polls = HETCCL_TCP_LAZY_POLLS;
        hetccl_tcp_acknowledge(rail);
        busy |= hetccl_tcp_has_work(rail);
    }
    return busy ? HETCCL_MOVED : HETCCL_DONE;
}

static int hetccl_tcp_port_open(hetccl_tcp_port_t *port) {
    port->base.poll = hetccl_tcp_poll;
    port->base.arm = hetccl_tcp_arm;
    port->base.fd = epoll_create1(EPOLL_CLOEXEC);
    return port->base.fd < 0 ? errno : 0;
}

static void hetccl_tcp_port_close(hetccl_tcp_port_t *port) {
    if (port->base.fd >= 0) close(port->base.fd);
    free(port->regions);
}

static void hetccl_tcp_rail_open(hetccl_tcp_rail_t *rail, hetccl_tcp_port_t *port, int index) {
    rail->base.ops = &hetccl_tcp_rail_ops;
    rail->base.index = index;
    rail->base.state = HETCCL_RAIL_NEW;
    rail->port = port;
}

/* The rail is UP from the first epoll_ctl() on, when another thread may find it: all else is done before. 0, or errno:
 * it has to be closed. */
static int hetccl_tcp_rail_connect(hetccl_tcp_rail_t *rail, const int *fds, int nfds) {
    rail->nconnections = nfds;
    for (int i = 0; i < nfds; i++) {
        rail->connections[i] = (hetccl_tcp_connection_t){.rail = rail, .fd = fds[i], .index = i, .writable = 1};
    }
    rail->base.state = HETCCL_RAIL_UP;
    for (int i = 0; i < nfds; i++) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};
        event.data.ptr = &rail->connections[i];
        if (epoll_ctl(rail->port->base.fd, EPOLL_CTL_ADD, fds[i], &event) < 0) return errno;
    }
    return 0;
}

/* In the child of a fork, the sockets are still the parent's as well: they are closed there, and not ended. */
static void hetccl_tcp_rail_forget(hetccl_tcp_rail_t *rail) {
    for (int i = 0; i < rail->nconnections; i++) close(rail->connections[i].fd);
    rail->nconnections = 0;
}

/* A rail that is connected and not stopped is stopped here, under the mutex. */
static void hetccl_tcp_rail_close(hetccl_tcp_rail_t *rail) {
    hetccl_tcp_port_t *port = rail->port;
    if (rail->base.state == HETCCL_RAIL_UP || rail->base.state == HETCCL_RAIL_FAILED) {
        hetccl_tcp_stop(&rail->base);
        for (uint32_t i = 0; i < port->nregions; i++) {
            if (port->regions[i].rail == rail) hetccl_tcp_free_region(port, i);
        }
    }
    for (int i = 0; i < rail->nconnections; i++) shutdown(rail->connections[i].fd, SHUT_RDWR);
    hetccl_tcp_rail_forget(rail);
    rail->base.state = HETCCL_RAIL_CLOSED;
}

#endif
