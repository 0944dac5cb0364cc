/* Prints what trellis/remote.h promises about sizes and numbers, for a comparison with the library. */
#include <stdio.h>
#include <trellis/remote.h>

#define NUMBER(name) printf("%s %lld\n", #name, (long long)(name))

int main(void) {
    NUMBER(TRELLIS_REMOTE_NO_ROUTE);
    NUMBER(TRELLIS_REMOTE_MOVED);
    NUMBER(TRELLIS_REMOTE_STALE);
    NUMBER(TRELLIS_REMOTE_BOUNDS);
    NUMBER(TRELLIS_REMOTE_FENCED);
    NUMBER(TRELLIS_REMOTE_BUSY);
    NUMBER(TRELLIS_REMOTE_NO_MEMORY);
    NUMBER(TRELLIS_REMOTE_QUOTA);
    NUMBER(TRELLIS_REMOTE_BAD_TAG);
    NUMBER(TRELLIS_REMOTE_UNKNOWN_COMMAND);
    NUMBER(TRELLIS_REMOTE_MALFORMED);
    NUMBER(TRELLIS_REMOTE_DENIED);
    NUMBER(TRELLIS_REMOTE_RESTARTING);
    NUMBER(TRELLIS_REMOTE_LEASE);
    NUMBER(TRELLIS_REMOTE_PARTS);
    NUMBER(TRELLIS_REMOTE_UNSERVED);
    NUMBER(TRELLIS_REMOTE_READ);
    NUMBER(TRELLIS_REMOTE_WRITE);
    NUMBER(TRELLIS_REMOTE_WRITE_WHOLE);
    NUMBER(TRELLIS_REMOTE_FETCH_ADD);
    NUMBER(TRELLIS_REMOTE_COMPARE_SWAP);
    NUMBER(TRELLIS_REMOTE_CREATE);
    NUMBER(TRELLIS_REMOTE_CREATE_WITH);
    NUMBER(TRELLIS_REMOTE_DELETE);
    NUMBER(TRELLIS_REMOTE_INQUIRE);
    NUMBER(TRELLIS_REMOTE_TEXT_BYTES);
    NUMBER(sizeof(trellis_remote_pointer));
    NUMBER(sizeof(trellis_remote_options));
    NUMBER(sizeof(trellis_remote_welcome));
    NUMBER(sizeof(trellis_remote_call));
    NUMBER(offsetof(trellis_remote_call, kind));
    NUMBER(offsetof(trellis_remote_call, status));
    NUMBER(offsetof(trellis_remote_call, pointer));
    NUMBER(offsetof(trellis_remote_call, into));
    NUMBER(offsetof(trellis_remote_call, from));
    NUMBER(offsetof(trellis_remote_call, bytes));
    NUMBER(offsetof(trellis_remote_call, value));
    NUMBER(offsetof(trellis_remote_call, desired));
    NUMBER(offsetof(trellis_remote_call, server));
    NUMBER(offsetof(trellis_remote_options, prefix));
    NUMBER(offsetof(trellis_remote_options, deadline_ms));
    NUMBER(offsetof(trellis_remote_options, piece_bytes));
    NUMBER(offsetof(trellis_remote_options, port));
    return 0;
}
