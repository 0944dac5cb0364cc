// What switch.bpf.c needs of the kernel: the helpers by their numbers, and how maps are declared. Written out so that a
// compiler and the kernel's headers suffice.
//
// A program here sees frames at tc, or, compiled with TRELLIS_XDP, before the kernel makes packets of them. What
// differs is at the end: the frame that came in, what is read of it, and how it is sent on.

#ifndef TRELLIS_SWITCH_KERNEL_H
#define TRELLIS_SWITCH_KERNEL_H

#include <linux/bpf.h>
#include <linux/types.h>

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

// Members of a map's declaration: the loader reads them from the types.
#define NUMBER(name, value) int(*name)[value]
#define TYPE(name, type) type *name

#define TC_ACT_SHOT 2

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the switch is written for little-endian machines"
#endif

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) =
    (void *)BPF_FUNC_map_update_elem;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_delete_elem;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)BPF_FUNC_ktime_get_ns;
static __u32 (*const bpf_get_prandom_u32)(void) = (void *)BPF_FUNC_get_prandom_u32;
static long (*const bpf_skb_store_bytes)(struct __sk_buff *skb, __u32 offset, const void *from, __u32 length,
                                         __u64 flags) = (void *)BPF_FUNC_skb_store_bytes;
static long (*const bpf_skb_load_bytes)(const struct __sk_buff *skb, __u32 offset, void *to, __u32 length) =
    (void *)BPF_FUNC_skb_load_bytes;
static long (*const bpf_clone_redirect)(struct __sk_buff *skb, __u32 interface, __u64 flags) =
    (void *)BPF_FUNC_clone_redirect;
static long (*const bpf_redirect)(__u32 interface, __u64 flags) = (void *)BPF_FUNC_redirect;
static long (*const bpf_redirect_peer)(__u32 interface, __u64 flags) = (void *)BPF_FUNC_redirect_peer;
static long (*const bpf_ringbuf_output)(void *ring, void *data, __u64 size, __u64 flags) =
    (void *)BPF_FUNC_ringbuf_output;
static long (*const bpf_redirect_map)(void *map, __u64 key, __u64 flags) = (void *)BPF_FUNC_redirect_map;
static __u64 (*const bpf_xdp_get_buff_len)(struct xdp_md *frame) = (void *)BPF_FUNC_xdp_get_buff_len;
static long (*const bpf_xdp_load_bytes)(struct xdp_md *frame, __u32 offset, void *to, __u32 length) =
    (void *)BPF_FUNC_xdp_load_bytes;
static long (*const bpf_xdp_store_bytes)(struct xdp_md *frame, __u32 offset, void *from, __u32 length) =
    (void *)BPF_FUNC_xdp_store_bytes;

#ifdef TRELLIS_XDP

#define AT_INGRESS "xdp.frags"
#define PROTOCOL_AT 12 // behind two hardware addresses
#define LOST XDP_DROP
typedef struct xdp_md frame;

INLINE __u32 interface_of(const frame *frame)
{
    return frame->ingress_ifindex;
}

INLINE __u32 length_of(frame *frame)
{
    return bpf_xdp_get_buff_len(frame);
}

// In network order; 0 when the frame is too short.
INLINE __be16 protocol_of(frame *frame)
{
    __be16 protocol;
    return bpf_xdp_load_bytes(frame, PROTOCOL_AT, &protocol, sizeof protocol) ? 0 : protocol;
}

// 0, or there are not so many bytes.
INLINE long load(frame *frame, __u32 offset, void *to, __u32 length)
{
    return bpf_xdp_load_bytes(frame, offset, to, length);
}

INLINE void store(frame *frame, __u32 offset, void *from, __u32 length)
{
    bpf_xdp_store_bytes(frame, offset, from, length);
}

#else

#define AT_INGRESS "classifier"
#define LOST TC_ACT_SHOT
typedef struct __sk_buff frame;

INLINE __u32 interface_of(const frame *frame)
{
    return frame->ifindex;
}

INLINE __u32 length_of(frame *frame)
{
    return frame->len;
}

INLINE __be16 protocol_of(const frame *frame)
{
    return frame->protocol;
}

// 0, or there are not so many bytes.
INLINE long load(frame *frame, __u32 offset, void *to, __u32 length)
{
    return bpf_skb_load_bytes(frame, offset, to, length);
}

INLINE void store(frame *frame, __u32 offset, const void *from, __u32 length)
{
    bpf_skb_store_bytes(frame, offset, from, length, 0);
}

#endif

#endif
