/* The narrow bridge to libfabric. Its interface is mostly inline functions over tables of operations, so it is compiled
 * here, against the headers of the machine, instead of being described a second time in Rust.
 *
 * Promised: one reliable-datagram endpoint with messages, one-sided reads and one-sided writes, safe for several
 * threads; every operation is named by a slot, whose context lives here as long as the endpoint. Nothing here waits.
 *
 * Never done here: owning a buffer, deciding anything about frames or peers. The Rust side is `device.rs`; the two
 * structures at the top have the same layout there. */

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define COMPLETIONS_MAX 64
#define LANDED (UINT32_MAX - 1)
#define ADDRESS_SPACE_FLAGS                                                                                            \
    (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT)

/* What became of one operation. */
struct trellis_completion {
    uint32_t slot; /* LANDED: none of this endpoint's; a peer wrote to its memory */
    int32_t error;
    uint64_t bytes;
    uint64_t word; /* what that peer gave with its write */
};

/* What the provider is like. */
struct trellis_fabric_facts {
    uint64_t receives_max;
    uint64_t sends_max;
    uint64_t message_bytes_max;
    int32_t wait_descriptor; /* -1: the provider has none */
    int32_t needs_local_registration;
    int32_t has_virtual_addresses;
    int32_t word_bytes; /* how long a word that goes with a write may be */
};

struct trellis_fabric {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *addresses;
    struct fid_cq *completions;
    struct fid_ep *endpoint;
    struct fi_context2 *contexts;
    size_t slots;
    uint64_t next_key;
    int wait_descriptor;
};

static void explain(char *why, size_t room, const char *what, int error) {
    snprintf(why, room, "%s: %s", what, fi_strerror(error < 0 ? -error : error));
}

static struct fi_info *wanted(const char *provider) {
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        return NULL;
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_RMA | FI_SEND | FI_RECV | FI_READ | FI_REMOTE_READ | FI_WRITE | FI_REMOTE_WRITE;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->mr_mode = ADDRESS_SPACE_FLAGS;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    if (provider && *provider) {
        hints->fabric_attr->prov_name = strdup(provider);
        if (!hints->fabric_attr->prov_name) {
            fi_freeinfo(hints);
            return NULL;
        }
    }
    return hints;
}

static int is_socket_address(uint32_t format) {
    return format == FI_SOCKADDR || format == FI_SOCKADDR_IN || format == FI_SOCKADDR_IN6;
}

/* The provider's first offer; where its addresses are those of sockets, the first on the interface of `host`. */
static struct fi_info *choose(const char *provider, const char *host, char *why, size_t room) {
    struct fi_info *hints = wanted(provider), *found = NULL, *bound = NULL;
    if (!hints) {
        explain(why, room, "no memory", ENOMEM);
        return NULL;
    }
    int error = fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found);
    if (error) {
        explain(why, room, "it offers no reliable datagrams with one-sided reads and writes here", error);
        fi_freeinfo(hints);
        return NULL;
    }
    if (is_socket_address(found->addr_format) && host && *host) {
        /* The same provider as without an address, or the order of the list would decide. */
        free(hints->fabric_attr->prov_name);
        hints->fabric_attr->prov_name = strdup(found->fabric_attr->prov_name);
        error = fi_getinfo(FI_VERSION(1, 17), host, NULL, FI_SOURCE, hints, &bound);
        fi_freeinfo(found);
        found = bound;
        if (error) {
            explain(why, room, "it cannot use the address of this node", error);
            found = NULL;
        }
    }
    fi_freeinfo(hints);
    return found;
}

static int open_completions(struct trellis_fabric *self) {
    struct fi_cq_attr attributes = {
        /* Beside what this endpoint began: what its peers wrote, which is never more than it has buffers for. */
        .size = 2 * self->slots,
        .format = FI_CQ_FORMAT_DATA,
        .wait_obj = FI_WAIT_FD,
    };
    self->wait_descriptor = -1;
    int error = fi_cq_open(self->domain, &attributes, &self->completions, NULL);
    if (!error) {
        if (fi_control(&self->completions->fid, FI_GETWAIT, &self->wait_descriptor) == 0)
            return 0;
        self->wait_descriptor = -1;
        fi_close(&self->completions->fid);
        self->completions = NULL;
    }
    attributes.wait_obj = FI_WAIT_NONE;
    return fi_cq_open(self->domain, &attributes, &self->completions, NULL);
}

/* Ends every operation; the queue of completions, the addresses and the registrations stay. */
void trellis_fabric_stop(struct trellis_fabric *self) {
    if (self->endpoint)
        fi_close(&self->endpoint->fid);
    self->endpoint = NULL;
}

void trellis_fabric_close(struct trellis_fabric *self) {
    trellis_fabric_stop(self);
    if (self->addresses)
        fi_close(&self->addresses->fid);
    if (self->completions)
        fi_close(&self->completions->fid);
    if (self->domain)
        fi_close(&self->domain->fid);
    if (self->fabric)
        fi_close(&self->fabric->fid);
    if (self->info)
        fi_freeinfo(self->info);
    free(self->contexts);
    free(self);
}

struct trellis_fabric *trellis_fabric_open(const char *provider, const char *host, size_t slots, char *why,
                                           size_t room) {
    struct trellis_fabric *self = calloc(1, sizeof *self);
    const char *what = "no memory";
    int error = -FI_ENOMEM;
    if (!self)
        goto failed;
    self->slots = slots;
    self->next_key = 1;
    self->contexts = calloc(slots, sizeof *self->contexts);
    if (!self->contexts)
        goto failed;
    self->info = choose(provider, host, why, room);
    if (!self->info) {
        trellis_fabric_close(self);
        return NULL;
    }
    what = "the fabric cannot be opened";
    if ((error = fi_fabric(self->info->fabric_attr, &self->fabric, NULL)))
        goto failed;
    what = "the domain cannot be opened";
    if ((error = fi_domain(self->fabric, self->info, &self->domain, NULL)))
        goto failed;
    struct fi_av_attr addresses = {.type = FI_AV_UNSPEC};
    what = "the table of addresses cannot be made";
    if ((error = fi_av_open(self->domain, &addresses, &self->addresses, NULL)))
        goto failed;
    what = "the queue of completions cannot be made";
    if ((error = open_completions(self)))
        goto failed;
    what = "the endpoint cannot be made";
    if ((error = fi_endpoint(self->domain, self->info, &self->endpoint, NULL)))
        goto failed;
    what = "the endpoint cannot be enabled";
    if ((error = fi_ep_bind(self->endpoint, &self->addresses->fid, 0)))
        goto failed;
    if ((error = fi_ep_bind(self->endpoint, &self->completions->fid, FI_TRANSMIT | FI_RECV)))
        goto failed;
    if ((error = fi_enable(self->endpoint)))
        goto failed;
    return self;
failed:
    explain(why, room, what, error);
    if (self)
        trellis_fabric_close(self);
    return NULL;
}

void trellis_fabric_facts(struct trellis_fabric *self, struct trellis_fabric_facts *facts) {
    facts->receives_max = self->info->rx_attr->size;
    facts->sends_max = self->info->tx_attr->size;
    facts->message_bytes_max = self->info->ep_attr->max_msg_size;
    facts->wait_descriptor = self->wait_descriptor;
    facts->needs_local_registration = (self->info->domain_attr->mr_mode & FI_MR_LOCAL) != 0;
    facts->has_virtual_addresses = (self->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
    facts->word_bytes = (int32_t)self->info->domain_attr->cq_data_size;
}

/* The provider's name, such as "tcp;ofi_rxm". Lives as long as the endpoint. */
const char *trellis_fabric_provider(struct trellis_fabric *self) { return self->info->fabric_attr->prov_name; }

/* This endpoint's address; the number of its bytes, or a negative error. */
int64_t trellis_fabric_address(struct trellis_fabric *self, uint8_t *address, size_t room) {
    size_t bytes = room;
    int error = fi_getname(&self->endpoint->fid, address, &bytes);
    return error ? error : (int64_t)bytes;
}

int trellis_fabric_insert(struct trellis_fabric *self, const uint8_t *address, uint64_t *peer) {
    fi_addr_t number = FI_ADDR_UNSPEC;
    int count = fi_av_insert(self->addresses, address, 1, &number, 0, NULL);
    *peer = number;
    return count == 1 ? 0 : (count < 0 ? count : -FI_EINVAL);
}

/* Registers memory. `shared` 0: to be received into and sent from; 1: to be read by peers; 2: to be read and written by
 * peers and from here. */
int trellis_fabric_register(struct trellis_fabric *self, const void *pointer, size_t bytes, int shared,
                            struct fid_mr **registration, uint64_t *key, void **description) {
    uint64_t access = shared ? FI_REMOTE_READ : FI_SEND | FI_RECV | FI_READ | FI_WRITE;
    if (shared == 2)
        access |= FI_REMOTE_WRITE | FI_READ | FI_WRITE;
    uint64_t wanted_key = __atomic_fetch_add(&self->next_key, 1, __ATOMIC_RELAXED);
    int error = fi_mr_reg(self->domain, pointer, bytes, access, 0, wanted_key, 0, registration, NULL);
    if (error)
        return error;
    if (self->info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
        error = fi_mr_bind(*registration, &self->endpoint->fid, 0);
        if (!error)
            error = fi_mr_enable(*registration);
        if (error) {
            fi_close(&(*registration)->fid);
            return error;
        }
    }
    *key = fi_mr_key(*registration);
    *description = fi_mr_desc(*registration);
    return 0;
}

void trellis_fabric_unregister(struct fid_mr *registration) { fi_close(&registration->fid); }

int64_t trellis_fabric_post(struct trellis_fabric *self, uint32_t slot, void *pointer, size_t bytes,
                            void *description) {
    return fi_recv(self->endpoint, pointer, bytes, description, FI_ADDR_UNSPEC, &self->contexts[slot]);
}

int64_t trellis_fabric_send(struct trellis_fabric *self, uint32_t slot, const void *pointer, size_t bytes,
                            void *description, uint64_t peer) {
    return fi_send(self->endpoint, pointer, bytes, description, peer, &self->contexts[slot]);
}

int64_t trellis_fabric_read(struct trellis_fabric *self, uint32_t slot, void *pointer, size_t bytes,
                            void *description, uint64_t peer, uint64_t address, uint64_t key) {
    return fi_read(self->endpoint, pointer, bytes, description, peer, address, key, &self->contexts[slot]);
}

/* Writes to a peer's memory. The peer gets `word` when the bytes are there; the completion here says less. */
int64_t trellis_fabric_write(struct trellis_fabric *self, uint32_t slot, const void *pointer, size_t bytes,
                             void *description, uint64_t peer, uint64_t address, uint64_t key, uint64_t word) {
    struct iovec from = {.iov_base = (void *)pointer, .iov_len = bytes};
    struct fi_rma_iov to = {.addr = address, .len = bytes, .key = key};
    struct fi_msg_rma message = {
        .msg_iov = &from,
        .desc = &description,
        .iov_count = 1,
        .addr = peer,
        .rma_iov = &to,
        .rma_iov_count = 1,
        .context = &self->contexts[slot],
        .data = word,
    };
    return fi_writemsg(self->endpoint, &message, FI_REMOTE_CQ_DATA | FI_COMPLETION);
}

static uint32_t slot_of(struct trellis_fabric *self, void *context) {
    struct fi_context2 *here = context;
    if (here < self->contexts || here >= self->contexts + self->slots)
        return UINT32_MAX;
    return (uint32_t)(here - self->contexts);
}

/* Completions that are there; their number, or a negative error. */
int64_t trellis_fabric_poll(struct trellis_fabric *self, struct trellis_completion *out, size_t room) {
    struct fi_cq_data_entry entries[COMPLETIONS_MAX];
    if (room > COMPLETIONS_MAX)
        room = COMPLETIONS_MAX;
    int64_t count = fi_cq_read(self->completions, entries, room);
    if (count == -FI_EAGAIN)
        return 0;
    if (count == -FI_EAVAIL) {
        struct fi_cq_err_entry failed = {0};
        count = fi_cq_readerr(self->completions, &failed, 0);
        if (count == -FI_EAGAIN)
            return 0;
        if (count < 0)
            return count;
        out[0].slot = slot_of(self, failed.op_context);
        out[0].error = failed.err ? failed.err : FI_EOTHER;
        out[0].bytes = 0;
        out[0].word = 0;
        return 1;
    }
    for (int64_t index = 0; index < count; index++) {
        /* The context of what a peer began is the provider's own, and may look like one of these. */
        int landed = (entries[index].flags & FI_REMOTE_CQ_DATA) != 0;
        out[index].slot = landed ? LANDED : slot_of(self, entries[index].op_context);
        out[index].error = 0;
        out[index].bytes = entries[index].len;
        out[index].word = landed ? entries[index].data : 0;
    }
    return count;
}

/* Whether the descriptor will tell of whatever comes from now on; otherwise there is something already. */
int trellis_fabric_may_sleep(struct trellis_fabric *self) {
    struct fid *waited[1] = {&self->completions->fid};
    return fi_trywait(self->fabric, waited, 1) == 0;
}

const char *trellis_fabric_sentence(int error) { return fi_strerror(error < 0 ? -error : error); }

/* The providers that this machine offers, one per line, in libfabric's order; the bytes of the text. */
size_t trellis_fabric_providers(char *text, size_t room) {
    struct fi_info *hints = wanted(NULL), *found = NULL;
    size_t length = 0;
    if (room > 0)
        text[0] = 0;
    if (!hints || fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found))
        found = NULL;
    for (struct fi_info *one = found; one; one = one->next) {
        char line[128];
        int bytes = snprintf(line, sizeof line, "%s\n", one->fabric_attr->prov_name);
        if (bytes <= 0 || (size_t)bytes >= sizeof line || length + (size_t)bytes + 1 > room)
            break;
        if (strstr(text, line))
            continue;
        memcpy(text + length, line, (size_t)bytes + 1);
        length += (size_t)bytes;
    }
    if (found)
        fi_freeinfo(found);
    if (hints)
        fi_freeinfo(hints);
    return length;
}
