/* SQLite as a library: a database in memory, with an index, joins, sorts, a user's function, an error and a rollback.
 *
 *   rows COUNT [FILE]     COUNT rows; with FILE the database is that file, which must not exist
 */
#include "sqlite3.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(sqlite3 *database, const char *what) {
    fprintf(stderr, "%s: %s\n", what, sqlite3_errmsg(database));
    exit(1);
}

static int print_row(void *prefix, int columns, char **values, char **names) {
    printf("%s", (const char *)prefix);
    for (int at = 0; at < columns; at++)
        printf(" %s=%s", names[at], values[at] ? values[at] : "NULL");
    printf("\n");
    return 0;
}

static void run(sqlite3 *database, const char *prefix, const char *text) {
    char *error = NULL;
    if (sqlite3_exec(database, text, print_row, (void *)prefix, &error) != SQLITE_OK) {
        printf("%s failed: %s\n", prefix, error);
        sqlite3_free(error);
    }
}

/* checksum(TEXT, NUMBER): an aggregate, with memory that SQLite keeps for it. */
static void step(sqlite3_context *context, int count, sqlite3_value **values) {
    unsigned *sum = sqlite3_aggregate_context(context, sizeof *sum);
    (void)count;
    for (const unsigned char *at = sqlite3_value_text(values[0]); at && *at; at++)
        *sum = *sum * 31 + *at;
    *sum += (unsigned)sqlite3_value_int(values[1]);
}
static void finish(sqlite3_context *context) {
    unsigned *sum = sqlite3_aggregate_context(context, 0);
    sqlite3_result_int64(context, sum ? *sum : 0);
}

static void fill(sqlite3 *database, int rows) {
    sqlite3_stmt *insert;
    if (sqlite3_prepare_v2(database, "INSERT INTO orders VALUES (?1, ?2, ?3, ?4)", -1, &insert, NULL) != SQLITE_OK)
        fail(database, "prepare");
    run(database, "begin", "BEGIN");
    for (int at = 0; at < rows; at++) {
        char text[64];
        int length = snprintf(text, sizeof text, "article %d of %d", (int)((unsigned)at * 7919u % 10007u), at % 13);
        sqlite3_bind_int(insert, 1, at);
        sqlite3_bind_int(insert, 2, at % 97);
        sqlite3_bind_text(insert, 3, text, length, SQLITE_TRANSIENT);
        sqlite3_bind_double(insert, 4, at / 8.0);
        if (sqlite3_step(insert) != SQLITE_DONE)
            fail(database, "insert");
        sqlite3_reset(insert);
    }
    run(database, "commit", "COMMIT");
    sqlite3_finalize(insert);
}

int main(int count, char **arguments) {
    int rows = count > 1 ? atoi(arguments[1]) : 1000;
    sqlite3 *database;
    if (sqlite3_open(count > 2 ? arguments[2] : ":memory:", &database) != SQLITE_OK)
        fail(database, "open");
    sqlite3_create_function(database, "checksum", 2, SQLITE_UTF8, NULL, NULL, step, finish);
    run(database, "make", "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, article TEXT, price REAL);"
                          "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT UNIQUE)");
    run(database, "customers", "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 96) "
                               "INSERT INTO customers SELECT i, printf('customer %03d', (i * 31) % 97) FROM n");
    fill(database, rows);
    run(database, "index", "CREATE INDEX by_customer ON orders (customer, price DESC)");
    run(database, "plan", "EXPLAIN QUERY PLAN SELECT * FROM orders WHERE customer = 5 ORDER BY price DESC");
    run(database, "sums",
        "SELECT count(*) AS n, round(sum(price), 3) AS total, checksum(article, id) AS checksum FROM orders");
    run(database, "join",
        "SELECT c.name, count(*) AS n, max(o.article) AS last FROM orders o JOIN customers c ON c.id = o.customer "
        "GROUP BY c.id ORDER BY n DESC, c.name LIMIT 5");
    run(database, "sort", "SELECT article, price FROM orders ORDER BY article COLLATE NOCASE, id LIMIT 3");
    run(database, "window",
        "SELECT id, sum(price) OVER (ORDER BY id ROWS 2 PRECEDING) AS sum FROM orders LIMIT 4 OFFSET 10");
    run(database, "like", "SELECT count(*) AS n FROM orders WHERE article LIKE '%7 of 1_' OR article GLOB '*99*'");
    run(database, "twice", "INSERT INTO customers VALUES (1, 'again')");
    run(database, "wrong", "SELECT nothing FROM nowhere");
    run(database, "back",
        "BEGIN; DELETE FROM orders WHERE customer % 2; SELECT count(*) AS left FROM orders; ROLLBACK");
    run(database, "update", "UPDATE orders SET article = upper(article) WHERE customer BETWEEN 10 AND 20");
    run(database, "text",
        "SELECT upper(substr(group_concat(name, ';'), 1, 40)) AS names, hex(zeroblob(3)) AS zero, "
        "typeof(1.5), quote('it''s'), printf('%08.3f|%-5d|%x', 3.14159, 42, 255) AS shown, json('[1, {\"a\": 2}]') "
        "AS json "
        "FROM customers");
    run(database, "date",
        "SELECT strftime('%Y-%m-%d', 86400 * 365, 'unixepoch') AS day, julianday('2000-01-01') AS julian");
    run(database, "again", "SELECT checksum(article, id) AS checksum FROM orders");
    run(database, "check", "PRAGMA integrity_check");
    printf("changes %d\n", sqlite3_total_changes(database));
    printf("closed %d\n", sqlite3_close(database));
    printf("memory in use %d\n", (int)sqlite3_memory_used());
}
