// Google's emulator of Bigtable, with what a row of Bigtable promises and the emulator does not: a read of a row sees all
// of a change or nothing.
//
// The emulator (v1.58.0, bttest/inmem.go) copies a row to read it without its lock, but the copy shares the list of column
// names, which the next change sorts in place; a read may then miss a column that was there all the time. Here nothing
// is read while something is changed.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"

	"cloud.google.com/go/bigtable/bttest"
	"google.golang.org/grpc"
)

const messageBytesMax = 256 << 20

func main() {
	address := flag.String("address", "127.0.0.1:9000", "where to listen")
	flag.Parse()

	var rows sync.RWMutex
	unary := func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		rows.Lock()
		defer rows.Unlock()
		return handle(ctx, request)
	}
	stream := func(server any, stream grpc.ServerStream, call *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		if strings.HasSuffix(call.FullMethod, "/ReadRows") {
			rows.RLock()
			defer rows.RUnlock()
		} else {
			rows.Lock()
			defer rows.Unlock()
		}
		return handle(server, stream)
	}
	server, err := bttest.NewServer(*address,
		grpc.MaxRecvMsgSize(messageBytesMax), grpc.MaxSendMsgSize(messageBytesMax),
		grpc.UnaryInterceptor(unary), grpc.StreamInterceptor(stream))
	if err != nil {
		log.Fatalf("cannot listen on %s: %v", *address, err)
	}
	defer server.Close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	<-ctx.Done()
}
