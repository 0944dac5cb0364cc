// What switch.bpf.c needs of the kernel: the helpers by their numbers, and how maps are declared. Written out so that a
// compiler and the kernel's headers suffice.

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

#endif
