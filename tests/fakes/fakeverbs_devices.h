/* The fake libibverbs' devices: what FAKEVERBS_DEVICES describes, and how they are listed and asked.
 *
 * The text, or @ and the file that holds it, is words with spaces or new lines between them. `device=NAME` begins a
 * device with its first port, `port` another port of it; the other words set what the latest has, in this process:
 *     transport=1 (iWARP)  open=ERRNO  sysfs=FOLDER  max_qp=N  max_cqe=N  max_qp_wr=N
 *     state=N  link=N (1 InfiniBand, 2 Ethernet)  mtu=N (1 to 5)  lid=N  sm_lid=N  width=N  speed=N  ngids=N  npkeys=N
 *     gid=INDEX/32 HEXADECIMAL DIGITS/TYPE (0 IB, 1 RoCE v1, 2 RoCE v2)/INDEX OF THE INTERFACE
 * Without the variable: fake0 and fake1, one Ethernet port each, with link-local, IPv4 and IPv6 GIDs. */
#ifndef FAKEVERBS_DEVICES_H
#define FAKEVERBS_DEVICES_H

#include <arpa/inet.h>

#include "fakeverbs_state.h"

enum { DEVICES_MAX = 16, PORTS_MAX = 4, GIDS_MAX = 1024 };

static const char DEVICES_DEFAULT[] =
    "device=fake0 gid=0/fe80000000000000000000fffe000001/2/1 gid=1/00000000000000000000ffff0a630001/2/1 "
    "gid=2/fd990000000000000000000000000001/2/1 "
    "device=fake1 gid=0/fe80000000000000000000fffe000002/2/1 gid=1/00000000000000000000ffff0a630002/2/1 "
    "gid=2/fd990000000000000000000000000002/2/1";

typedef struct port {
    hetccl_ibv_port_attr_t attr;
    hetccl_ibv_gid_entry_t gids[GIDS_MAX];
} port_t;

typedef struct device {
    hetccl_ibv_device_t public;
    int open_error, nports, max_qp, max_cqe, max_qp_wr;
    port_t ports[PORTS_MAX]; /* the first is port 1 */
} device_t;

static device_t *devices;
static int ndevices;

static int hex_digit(char c) { return c <= '9' ? c - '0' : (c | 32) - 'a' + 10; }

static void gid_add(port_t *port, const char *text) {
    unsigned index = 0, type = 0, interface = 0;
    char digits[33] = "";
    if (sscanf(text, "%u/%32[0-9a-fA-F]/%u/%u", &index, digits, &type, &interface) < 3 || index >= GIDS_MAX) abort();
    hetccl_ibv_gid_entry_t *entry = &port->gids[index];
    for (int i = 0; i < 16; i++)
        entry->gid.raw[i] = (uint8_t)(hex_digit(digits[2 * i]) << 4 | hex_digit(digits[2 * i + 1]));
    entry->gid_index = index;
    entry->gid_type = type;
    entry->ndev_ifindex = interface;
}

static void port_begin(device_t *device) {
    port_t *port = &device->ports[device->nports++];
    port->attr = (hetccl_ibv_port_attr_t){
        .state = HETCCL_IBV_PORT_ACTIVE, .max_mtu = 5, .active_mtu = 5, .gid_tbl_len = 16, .max_msg_sz = 1u << 30,
        .pkey_tbl_len = 1, .active_width = 2, .active_speed = 32, .link_layer = HETCCL_IBV_LINK_LAYER_ETHERNET};
}

static void device_begin(const char *name) {
    if (ndevices == DEVICES_MAX) abort();
    device_t *device = &devices[ndevices++];
    *device = (device_t){.max_qp = QPS_MAX, .max_cqe = 32767, .max_qp_wr = ARRIVED_MAX};
    device->public.node_type = HETCCL_IBV_NODE_CA;
    snprintf(device->public.name, sizeof device->public.name, "%s", name);
    snprintf(device->public.dev_name, sizeof device->public.dev_name, "uverbs%d", ndevices - 1);
    snprintf(device->public.ibdev_path, sizeof device->public.ibdev_path, "/nowhere/%s", name);
    port_begin(device);
}

static void word_read(const char *key, const char *value) {
    device_t *device = ndevices ? &devices[ndevices - 1] : NULL;
    if (!strcmp(key, "device")) return device_begin(value);
    if (!device) abort();
    if (!strcmp(key, "port")) return port_begin(device);
    port_t *port = &device->ports[device->nports - 1];
    if (!strcmp(key, "gid")) return gid_add(port, value);
    if (!strcmp(key, "sysfs")) {
        snprintf(device->public.ibdev_path, sizeof device->public.ibdev_path, "%s", value);
        return;
    }
    int number = atoi(value);
#define SET(name, place) if (!strcmp(key, name)) { place = number; return; }
    SET("transport", device->public.transport_type)
    SET("open", device->open_error)
    SET("max_qp", device->max_qp)
    SET("max_cqe", device->max_cqe)
    SET("max_qp_wr", device->max_qp_wr)
    SET("state", port->attr.state)
    SET("link", port->attr.link_layer)
    SET("mtu", port->attr.active_mtu)
    SET("lid", port->attr.lid)
    SET("sm_lid", port->attr.sm_lid)
    SET("width", port->attr.active_width)
    SET("speed", port->attr.active_speed)
    SET("ngids", port->attr.gid_tbl_len)
    SET("npkeys", port->attr.pkey_tbl_len)
#undef SET
    fprintf(stderr, "fakeverbs: FAKEVERBS_DEVICES has no word %s\n", key);
    abort();
}

static void devices_read(void) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    static char text[1 << 16];
    pthread_mutex_lock(&once);
    if (!devices) {
        const char *given = getenv("FAKEVERBS_DEVICES");
        devices = calloc(DEVICES_MAX, sizeof *devices);
        snprintf(text, sizeof text, "%s", given ? given : DEVICES_DEFAULT);
        if (text[0] == '@') {
            FILE *file = fopen(text + 1, "r");
            if (!file) abort();
            text[fread(text, 1, sizeof text - 1, file)] = 0;
            fclose(file);
        }
        char *rest = NULL;
        for (char *word = strtok_r(text, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest)) {
            char *value = strchr(word, '=');
            if (value) *value++ = 0;
            word_read(word, value ? value : "");
        }
    }
    pthread_mutex_unlock(&once);
}

static device_t *device_of(const hetccl_ibv_context_t *context) { return (device_t *)context->device; }

static port_t *port_of(const hetccl_ibv_context_t *context, unsigned number) {
    device_t *device = device_of(context);
    return number >= 1 && (int)number <= device->nports ? &device->ports[number - 1] : NULL;
}

API hetccl_ibv_device_t **ibv_get_device_list(int *count) {
    int error = called("get_device_list");
    devices_read();
    hetccl_ibv_device_t **list = error ? NULL : calloc((size_t)ndevices + 1, sizeof *list);
    for (int i = 0; list && i < ndevices; i++) list[i] = &devices[i].public;
    if (count) *count = list ? ndevices : 0;
    errno = error;
    return list;
}

API void ibv_free_device_list(hetccl_ibv_device_t **list) { free(list); }

API const char *ibv_get_device_name(hetccl_ibv_device_t *device) { return device->name; }

API uint64_t ibv_get_device_guid(hetccl_ibv_device_t *device) {
    uint64_t number = (uint64_t)((device_t *)device - devices) + 1;
    return (uint64_t)htonl((uint32_t)number) << 32 | htonl(0x02fa4e00);
}

API int ibv_query_device(hetccl_ibv_context_t *context, hetccl_ibv_device_attr_t *attr) {
    int error = called("query_device");
    if (error) return error;
    device_t *device = device_of(context);
    *attr = (hetccl_ibv_device_attr_t){
        .fw_ver = "fake", .node_guid = ibv_get_device_guid(context->device), .max_mr_size = UINT64_MAX,
        .max_qp = device->max_qp, .max_qp_wr = device->max_qp_wr, .max_sge = SGES_MAX, .max_cq = CQS_MAX,
        .max_cqe = device->max_cqe, .max_mr = MRS_MAX, .max_pd = 1024, .max_qp_rd_atom = 16,
        .max_qp_init_rd_atom = 16, .max_pkeys = 1, .phys_port_cnt = (uint8_t)device->nports};
    return 0;
}

/* As the library's function of this version: it writes nothing behind `flags`. */
API int ibv_query_port(hetccl_ibv_context_t *context, uint8_t number, hetccl_ibv_port_attr_t *attr) {
    int error = called("query_port");
    port_t *port = port_of(context, number);
    if (error || !port) return error ? error : EINVAL;
    memcpy(attr, &port->attr, offsetof(hetccl_ibv_port_attr_t, port_cap_flags2));
    return 0;
}

API int ibv_query_gid(hetccl_ibv_context_t *context, uint8_t number, int index, hetccl_ibv_gid_t *gid) {
    int error = called("query_gid");
    port_t *port = port_of(context, number);
    if (error || !port || index < 0 || index >= port->attr.gid_tbl_len) {
        errno = error ? error : EINVAL;
        return -1;
    }
    *gid = port->gids[index].gid;
    return 0;
}

/* Of all ports; entries that are zero are left out. */
API ssize_t _ibv_query_gid_table(hetccl_ibv_context_t *context, hetccl_ibv_gid_entry_t *entries, size_t nentries,
                                 uint32_t flags, size_t entry_nbytes) {
    int error = called("query_gid_table");
    size_t count = 0;
    if (error) return -error;
    if (flags || entry_nbytes < sizeof *entries) return -EINVAL;
    for (unsigned number = 1; port_of(context, number); number++) {
        port_t *port = port_of(context, number);
        for (int i = 0; i < port->attr.gid_tbl_len && i < GIDS_MAX; i++) {
            if (!port->gids[i].gid.half[0] && !port->gids[i].gid.half[1]) continue;
            if (count == nentries) return -EINVAL;
            entries[count] = port->gids[i];
            entries[count++].port_num = number;
        }
    }
    return (ssize_t)count;
}

#endif
