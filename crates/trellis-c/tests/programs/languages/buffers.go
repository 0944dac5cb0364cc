// Reads and writes files with shared buffers that another node holds: buffers FOLDER
package main

// #include "trellis.h"
import "C"

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"unsafe"
)

const size = 40*4096 + 5

func good(status C.int) {
	if status != 0 {
		log.Fatal(C.GoString(C.trellis_last_error()))
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func main() {
	var cluster *C.trellis_cluster
	good(C.trellis_join(nil, &cluster))
	memory := unsafe.Slice((*byte)(C.trellis_base(cluster)), size)
	content := make([]byte, size)
	for number := range content {
		content[number] = byte(number * 7 % 251)
	}
	path := filepath.Join(os.Args[1], "content")
	if C.trellis_node(cluster) == 0 {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			log.Fatal(err)
		}
		clear(memory)
	}
	good(C.trellis_barrier(cluster, 1))
	if C.trellis_node(cluster) == 1 {
		file := must(os.Open(path))
		must(io.ReadFull(file, memory))
		if !bytes.Equal(memory, content) {
			log.Fatal("the file was read wrong")
		}
	}
	good(C.trellis_barrier(cluster, 2))
	if C.trellis_node(cluster) == 0 {
		file := must(os.Create(path + "-copy"))
		must(file.Write(memory))
		if !bytes.Equal(must(os.ReadFile(path+"-copy")), content) {
			log.Fatal("the file was written wrong")
		}
	}
	good(C.trellis_leave(cluster))
	fmt.Println("complete")
}
