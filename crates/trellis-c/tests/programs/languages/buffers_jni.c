/* What Buffers.java calls. */
#include <jni.h>
#include <stdio.h>
#include <stdlib.h>

#include "trellis.h"

static trellis_cluster *cluster;

static void good(int status) {
    if (status) {
        fprintf(stderr, "%s\n", trellis_last_error());
        exit(1);
    }
}

JNIEXPORT jobject JNICALL Java_Buffers_join(JNIEnv *environment, jclass class, jint bytes) {
    (void)class;
    good(trellis_join(NULL, &cluster));
    return (*environment)->NewDirectByteBuffer(environment, trellis_base(cluster), bytes);
}

JNIEXPORT jint JNICALL Java_Buffers_node(JNIEnv *environment, jclass class) {
    (void)environment, (void)class;
    return (jint)trellis_node(cluster);
}

JNIEXPORT void JNICALL Java_Buffers_barrier(JNIEnv *environment, jclass class, jlong id) {
    (void)environment, (void)class;
    good(trellis_barrier(cluster, (uint64_t)id));
}

JNIEXPORT void JNICALL Java_Buffers_leave(JNIEnv *environment, jclass class) {
    (void)environment, (void)class;
    good(trellis_leave(cluster));
}
