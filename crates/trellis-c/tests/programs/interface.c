/* Every function of trellis.h on a cluster of any size, and every refusal that needs no peer. Exit 0 when all is
 * right. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <trellis.h>

static int wrong;

#define CHECK(condition)                                                                                    \
    do {                                                                                                    \
        if (!(condition)) {                                                                                 \
            fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #condition, trellis_last_error());   \
            wrong = 1;                                                                                      \
        }                                                                                                   \
    } while (0)

static void refuse_nothing(void) {
    uint64_t word = 0;
    trellis_counters counters;
    CHECK(trellis_join(NULL, NULL) == TRELLIS_ERROR_ARGUMENT);
    CHECK(trellis_leave(NULL) == TRELLIS_ERROR_ARGUMENT);
    CHECK(trellis_barrier(NULL, 0) == TRELLIS_ERROR_ARGUMENT);
    CHECK(trellis_lock(NULL, 0) == TRELLIS_ERROR_ARGUMENT && trellis_unlock(NULL, 0) == TRELLIS_ERROR_ARGUMENT);
    CHECK(trellis_atomic_load(NULL, 0, &word) == TRELLIS_ERROR_ARGUMENT);
    CHECK(trellis_read_counters(NULL, &counters, sizeof counters) == TRELLIS_ERROR_ARGUMENT);
    CHECK(strstr(trellis_last_error(), "NULL") != NULL);
    CHECK(trellis_base(NULL) == NULL && trellis_bytes(NULL) == 0 && trellis_nodes(NULL) == 0);
    CHECK(trellis_members(NULL) == 0 && !trellis_joined_later(NULL) && !trellis_leave_requested(NULL));
    trellis_abandon(NULL);
    trellis_config_free(NULL);
}

static trellis_config *configure(void) {
    trellis_config *config = NULL;
    CHECK(trellis_config_load("/no/such/file.toml", &config) == TRELLIS_ERROR_CONFIGURATION && config == NULL);
    CHECK(strstr(trellis_last_error(), "/no/such/file.toml") != NULL);
    CHECK(trellis_config_load(NULL, &config) == TRELLIS_OK);
    CHECK(trellis_config_set(config, "region_bytes", "4MiB") == TRELLIS_OK);
    CHECK(trellis_config_set(config, "page_bytes", "5000") == TRELLIS_ERROR_CONFIGURATION);
    CHECK(trellis_config_set(config, "regoin_bytes", "1") == TRELLIS_ERROR_CONFIGURATION);
    CHECK(strstr(trellis_last_error(), "region_bytes") != NULL);
    CHECK(trellis_config_set(config, NULL, "1") == TRELLIS_ERROR_ARGUMENT);
    CHECK(trellis_config_region_bytes(config) == 4 << 20);
    return config;
}

static void use(trellis_cluster *cluster) {
    size_t node = trellis_node(cluster), nodes = trellis_nodes(cluster);
    CHECK(trellis_members(cluster) == nodes && !trellis_joined_later(cluster) && !trellis_leave_requested(cluster));
    uint64_t *slots = trellis_base(cluster);
    uint64_t word = 0, before = 0;
    trellis_cluster *second = NULL;

    CHECK(trellis_bytes(cluster) == 4 << 20 && node < nodes && trellis_manager(cluster) < nodes);
    CHECK(trellis_join(NULL, &second) == TRELLIS_ERROR_STATE && second == NULL);
    CHECK(trellis_phase(cluster, "use") == TRELLIS_OK);
    CHECK(trellis_prefetch(cluster, slots, 8 * trellis_page_bytes(cluster), TRELLIS_WRITE) == TRELLIS_OK);
    CHECK(trellis_prefetch(cluster, slots, trellis_bytes(cluster) + 1, TRELLIS_READ) == TRELLIS_ERROR_ARGUMENT);
    CHECK(trellis_prefetch(cluster, &word, sizeof word, TRELLIS_READ) == TRELLIS_ERROR_ARGUMENT);
    CHECK(trellis_prefetch(cluster, slots, 1, 7) == TRELLIS_ERROR_ARGUMENT);
    CHECK(trellis_unlock(cluster, 5) == TRELLIS_ERROR_STATE);

    for (int i = 0; i < 100; i++) {
        CHECK(trellis_lock(cluster, 5) == TRELLIS_OK);
        slots[0]++;
        CHECK(trellis_unlock(cluster, 5) == TRELLIS_OK);
        CHECK(trellis_atomic_fetch_add(cluster, 9, 1, i % 2 ? &before : NULL) == TRELLIS_OK);
        __atomic_fetch_add(&slots[1024], 1, __ATOMIC_SEQ_CST);
    }
    CHECK(trellis_barrier(cluster, 1) == TRELLIS_OK);
    CHECK(slots[0] == 100 * nodes && slots[1024] == 100 * nodes);
    CHECK(trellis_atomic_load(cluster, 9, &word) == TRELLIS_OK && word == 100 * nodes);
    CHECK(trellis_barrier(cluster, 1) == TRELLIS_OK);

    if (node == 0) {
        CHECK(trellis_atomic_exchange(cluster, 9, 7, &before) == TRELLIS_OK && before == 100 * nodes);
        CHECK(trellis_atomic_compare_exchange(cluster, 9, &before, 8) == 0 && before == 7);
        CHECK(trellis_atomic_compare_exchange(cluster, 9, &before, 8) == 1);
        CHECK(trellis_atomic_store(cluster, 9, 11) == TRELLIS_OK);
        CHECK(trellis_atomic_load(cluster, 9, &word) == TRELLIS_OK && word == 11);
    }
}

/* Ranges: locks, and protocols that change while the bytes stay. */
static void ranges(trellis_cluster *cluster) {
    size_t node = trellis_node(cluster), nodes = trellis_nodes(cluster), page = trellis_page_bytes(cluster);
    uint64_t *first = (uint64_t *)((char *)trellis_base(cluster) + 64 * page);
    uint64_t *second = first + page / 8;
    char text[64], word[5];
    CHECK(trellis_protocol_at(cluster, first, text, sizeof text) == 3 && strcmp(text, "ivy") == 0);
    CHECK(trellis_lock_range(cluster, first, page) == TRELLIS_ERROR_STATE);
    CHECK(strstr(trellis_last_error(), "choose lock(ivy)") != NULL);
    CHECK(trellis_set_protocol(cluster, first, page + 1, "lock(dynamic)") == TRELLIS_ERROR_ARGUMENT);
    CHECK(trellis_set_protocol(cluster, first, page, "lock") == TRELLIS_ERROR_ARGUMENT);
    CHECK(strstr(trellis_last_error(), "dynamic(forward)") != NULL);
    CHECK(trellis_set_protocol(cluster, first, page, NULL) == TRELLIS_ERROR_ARGUMENT);
    if (node == 0) *second = 5;
    CHECK(trellis_set_protocol(cluster, first, 4 * page, "lock(dynamic)") == TRELLIS_OK);
    CHECK(*second == 5);
    CHECK(trellis_protocol_at(cluster, second, word, sizeof word) == 22 && strcmp(word, "lock") == 0);
    CHECK(trellis_protocol_at(cluster, text, word, sizeof word) == TRELLIS_ERROR_ARGUMENT);
    CHECK(trellis_protocol_at(cluster, first, NULL, 0) == TRELLIS_ERROR_ARGUMENT);
    CHECK(trellis_unlock_range(cluster, first, page) == TRELLIS_ERROR_STATE);
    CHECK(trellis_lock_range(cluster, first, 0) == TRELLIS_ERROR_ARGUMENT);
    CHECK(trellis_barrier(cluster, 2) == TRELLIS_OK);
    for (int i = 0; i < 50; i++) {
        CHECK(trellis_lock_range(cluster, second - 1, 16) == TRELLIS_OK);
        second[-1]++;
        second[0]++;
        CHECK(trellis_unlock_range(cluster, second - 1, 16) == TRELLIS_OK);
    }
    CHECK(trellis_barrier(cluster, 2) == TRELLIS_OK);
    CHECK(second[-1] == 50 * nodes && second[0] == 50 * nodes + 5);
    CHECK(trellis_barrier(cluster, 2) == TRELLIS_OK);
    if (node == nodes - 1) CHECK(trellis_lock_range_for(cluster, first, page, 2000) == TRELLIS_OK);
    CHECK(trellis_barrier(cluster, 2) == TRELLIS_OK);
    /* Nobody gives it back, and it comes all the same. */
    CHECK(trellis_lock_range(cluster, first, page) == TRELLIS_OK);
    CHECK(trellis_unlock_range(cluster, first, page) == TRELLIS_OK);
    CHECK(trellis_set_protocol(cluster, first, 4 * page, "ivy") == TRELLIS_OK);
    CHECK(second[0] == 50 * nodes + 5);
    CHECK(trellis_barrier(cluster, 2) == TRELLIS_OK);
    CHECK(trellis_barrier(cluster, UINT64_MAX) == TRELLIS_ERROR_STATE);
}

static void count(trellis_cluster *cluster) {
    trellis_counters counters;
    struct {
        uint64_t known[2];
        uint64_t guard;
    } old = {{1, 1}, 77};
    unsigned char newer[sizeof counters + 8];
    memset(newer, 0xFF, sizeof newer);
    CHECK(trellis_read_counters(cluster, &counters, sizeof counters) == TRELLIS_OK);
    CHECK(counters.barriers >= 2 && counters.lock_acquires >= 150 && counters.atomics >= 101);
    CHECK(trellis_read_counters(cluster, (void *)&old, sizeof old.known) == TRELLIS_OK && old.guard == 77);
    CHECK(trellis_read_counters(cluster, (void *)newer, sizeof newer) == TRELLIS_OK);
    CHECK(newer[sizeof counters] == 0 && newer[sizeof newer - 1] == 0);
}

static void fork_a_child(trellis_cluster *cluster) {
    int state = 0;
    pid_t child = fork();
    if (child == 0) {
        trellis_cluster *other = NULL;
        _exit(trellis_barrier(cluster, 1) == TRELLIS_ERROR_STATE && trellis_leave(cluster) == TRELLIS_ERROR_STATE &&
                      trellis_join(NULL, &other) == TRELLIS_ERROR_STATE
                  ? 0
                  : 1);
    }
    CHECK(waitpid(child, &state, 0) == child && state == 0);
}

int main(void) {
    trellis_cluster *cluster = NULL;
    trellis_config *config;
    CHECK(strcmp(trellis_last_error(), "") == 0);
    CHECK(strcmp(trellis_status_text(TRELLIS_ERROR_NODE_LOST), "node lost") == 0);
    CHECK(trellis_version()[0] == '0' + TRELLIS_VERSION_MAJOR);
    refuse_nothing();
    config = configure();
    if (trellis_join(config, &cluster) != TRELLIS_OK) {
        fprintf(stderr, "%s\n", trellis_last_error());
        return 1;
    }
    trellis_config_free(config);
    use(cluster);
    ranges(cluster);
    count(cluster);
    fork_a_child(cluster);
    CHECK(trellis_leave(cluster) == TRELLIS_OK);
    if (!wrong) puts("interface complete");
    return wrong;
}
