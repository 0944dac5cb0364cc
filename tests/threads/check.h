// Ends the program with status 1 and names the place if what a test says is false, in builds of every kind.
#pragma once

#include <stdio.h>
#include <stdlib.h>

#define CHECK(what)                                                              \
    do {                                                                         \
        if (!(what)) {                                                           \
            fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #what);  \
            exit(1);                                                             \
        }                                                                        \
    } while (0)
