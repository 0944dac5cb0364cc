// A server that speaks the interface of Google Datastore (v1), as far as the store `datastore` of Trellis uses it.
//
// It promises what the store relies on: a transaction that reads and writes takes effect at its commit or not at all (the
// answer is ABORTED if an entity that it looked up was changed), is ended by its commit or its rollback and cannot be
// committed again; one that only reads sees one moment. It refuses what Datastore refuses: entities over 1 MiB, requests
// over 10 MiB, more than 500 changes, two changes of one entity, long key names, projects that do not exist. Every Lookup
// answers some of many keys only, and defers the others.
//
// Of queries it has those for one kind and one number. It has no indexes to build, no statistics, no read times, no
// transforms, no property masks, no locks, and keeps everything in memory.
//
// With -lose N the answer to every Nth commit is lost, one time after it was done and one time before.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"sync"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"github.com/google/btree"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	entityBytesMax  = 1<<20 - 4
	requestBytesMax = 10 << 20
	changesMax      = 500
	nameBytesMax    = 1500
	lookupMax       = 1000
	answeredMax     = 100
	pageMax         = 300
)

type item struct {
	path    string
	key     *pb.Key
	entity  *pb.Entity
	version int64
}

func less(a, b item) bool { return a.path < b.path }

type transaction struct {
	reads    map[string]int64
	snapshot *btree.BTreeG[item] // of one that only reads
}

type server struct {
	pb.UnimplementedDatastoreServer
	mutex        sync.Mutex
	project      string
	items        *btree.BTreeG[item]
	transactions map[string]*transaction
	version      int64
	next         int64
	lose, count  int
}

func (s *server) check(project string) error {
	if project != s.project {
		return status.Errorf(codes.NotFound, "The project %s does not exist or it does not contain an active "+
			"Cloud Datastore or Cloud Firestore database.", project)
	}
	return nil
}

func pathOf(key *pb.Key) (string, error) {
	path := key.GetPartitionId().GetNamespaceId()
	for _, element := range key.GetPath() {
		if name := element.GetName(); name == "" || len(name) > nameBytesMax {
			return "", status.Errorf(codes.InvalidArgument, "a key path element must have a name of 1 to %d bytes", nameBytesMax)
		}
		path += "\x00" + element.Kind + "\x00" + element.GetName()
	}
	if len(key.GetPath()) != 1 {
		return "", status.Error(codes.Unimplemented, "keys with parents")
	}
	return path, nil
}

func (s *server) begin(options *pb.TransactionOptions) (string, *transaction) {
	s.next++
	id := fmt.Sprintf("transaction %d", s.next)
	begun := &transaction{reads: map[string]int64{}}
	if options.GetReadOnly() != nil {
		begun.snapshot = s.items.Clone()
	}
	s.transactions[id] = begun
	return id, begun
}

func (s *server) transaction(id []byte) (*transaction, error) {
	if known := s.transactions[string(id)]; known != nil {
		return known, nil
	}
	return nil, status.Error(codes.InvalidArgument, "The referenced transaction has expired or is no longer valid.")
}

func (s *server) BeginTransaction(_ context.Context, r *pb.BeginTransactionRequest) (*pb.BeginTransactionResponse, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.check(r.ProjectId); err != nil {
		return nil, err
	}
	id, _ := s.begin(r.TransactionOptions)
	return &pb.BeginTransactionResponse{Transaction: []byte(id)}, nil
}

func (s *server) Rollback(_ context.Context, r *pb.RollbackRequest) (*pb.RollbackResponse, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if _, err := s.transaction(r.Transaction); err != nil {
		return nil, err
	}
	delete(s.transactions, string(r.Transaction))
	return &pb.RollbackResponse{}, nil
}

func (s *server) Lookup(_ context.Context, r *pb.LookupRequest) (*pb.LookupResponse, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.check(r.ProjectId); err != nil {
		return nil, err
	}
	if len(r.Keys) > lookupMax {
		return nil, status.Errorf(codes.InvalidArgument, "cannot get more than %d keys in a single call", lookupMax)
	}
	answer := &pb.LookupResponse{}
	var inside *transaction
	switch options := r.GetReadOptions().GetConsistencyType().(type) {
	case *pb.ReadOptions_NewTransaction:
		id, begun := s.begin(options.NewTransaction)
		answer.Transaction, inside = []byte(id), begun
	case *pb.ReadOptions_Transaction:
		known, err := s.transaction(options.Transaction)
		if err != nil {
			return nil, err
		}
		inside = known
	}
	items := s.items
	if inside != nil && inside.snapshot != nil {
		items = inside.snapshot
	}
	for at, key := range r.Keys {
		path, err := pathOf(key)
		if err != nil {
			return nil, err
		}
		if at >= answeredMax {
			answer.Deferred = append(answer.Deferred, key)
			continue
		}
		found, exists := items.Get(item{path: path})
		if inside != nil && inside.snapshot == nil {
			if before, again := inside.reads[path]; again && before != found.version {
				return nil, status.Error(codes.Aborted, "too much contention on these datastore entities. please try again.")
			}
			inside.reads[path] = found.version
		}
		if exists {
			answer.Found = append(answer.Found, &pb.EntityResult{Entity: found.entity, Version: found.version})
		} else {
			missing := &pb.EntityResult{Entity: &pb.Entity{Key: key}, Version: s.version + 1}
			answer.Missing = append(answer.Missing, missing)
		}
	}
	return answer, nil
}

func (s *server) Commit(_ context.Context, r *pb.CommitRequest) (*pb.CommitResponse, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.count++
	turn := 0
	if s.lose > 0 && s.count%s.lose == 0 {
		turn = 1 + s.count/s.lose%2
	}
	if turn == 1 {
		return nil, status.Error(codes.Unavailable, "lost on the way there")
	}
	answer, err := s.commit(r)
	if turn == 2 {
		return nil, status.Error(codes.Unavailable, "lost on the way back")
	}
	return answer, err
}

func (s *server) commit(r *pb.CommitRequest) (*pb.CommitResponse, error) {
	if err := s.check(r.ProjectId); err != nil {
		return nil, err
	}
	if len(r.Mutations) > changesMax {
		return nil, status.Errorf(codes.InvalidArgument, "cannot write more than %d entities in a single call", changesMax)
	}
	if proto.Size(r) > requestBytesMax {
		return nil, status.Errorf(codes.InvalidArgument, "Request payload size exceeds the limit: %d bytes.", requestBytesMax)
	}
	if r.Mode != pb.CommitRequest_TRANSACTIONAL {
		return nil, status.Error(codes.Unimplemented, "commits outside of transactions")
	}
	if id := r.GetTransaction(); id != nil {
		inside, err := s.transaction(id)
		if err != nil {
			return nil, err
		}
		delete(s.transactions, string(id))
		for path, version := range inside.reads {
			if found, _ := s.items.Get(item{path: path}); found.version != version {
				return nil, status.Error(codes.Aborted, "too much contention on these datastore entities. please try again.")
			}
		}
	}
	changed := s.items.Clone()
	seen := map[string]bool{}
	answer := &pb.CommitResponse{}
	s.version++
	for _, mutation := range r.Mutations {
		entity := mutation.GetUpsert()
		key := entity.GetKey()
		if entity == nil {
			key = mutation.GetDelete()
		}
		if key == nil {
			return nil, status.Errorf(codes.Unimplemented, "%T", mutation.Operation)
		}
		path, err := pathOf(key)
		if err != nil {
			return nil, err
		}
		if seen[path] {
			return nil, status.Error(codes.InvalidArgument, "cannot write the same entity twice in one commit")
		}
		seen[path] = true
		if entity == nil {
			changed.Delete(item{path: path})
		} else if size := proto.Size(entity); size > entityBytesMax {
			return nil, status.Errorf(codes.InvalidArgument, "The value of property is longer than %d bytes.", entityBytesMax)
		} else {
			changed.ReplaceOrInsert(item{path: path, key: key, entity: entity, version: s.version})
		}
		answer.MutationResults = append(answer.MutationResults, &pb.MutationResult{Version: s.version})
	}
	s.items = changed
	return answer, nil
}

func (s *server) RunQuery(_ context.Context, r *pb.RunQueryRequest) (*pb.RunQueryResponse, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.check(r.ProjectId); err != nil {
		return nil, err
	}
	query := r.GetQuery()
	filter := query.GetFilter().GetPropertyFilter()
	if len(query.GetKind()) != 1 || filter.GetOp() != pb.PropertyFilter_EQUAL {
		return nil, status.Error(codes.Unimplemented, "queries but for one kind and one number")
	}
	from := r.GetPartitionId().GetNamespaceId() + "\x00" + query.Kind[0].Name + "\x00"
	start := from
	if len(query.StartCursor) > 0 {
		start = string(query.StartCursor)
	}
	batch := &pb.QueryResultBatch{
		EntityResultType: pb.EntityResult_KEY_ONLY,
		MoreResults:      pb.QueryResultBatch_NO_MORE_RESULTS,
	}
	s.items.AscendGreaterOrEqual(item{path: start}, func(found item) bool {
		if len(found.path) < len(from) || found.path[:len(from)] != from {
			return false
		}
		value := found.entity.Properties[filter.Property.Name]
		if value == nil || value.ExcludeFromIndexes || value.GetIntegerValue() != filter.Value.GetIntegerValue() {
			return true
		}
		if len(batch.EntityResults) == pageMax {
			batch.MoreResults = pb.QueryResultBatch_NOT_FINISHED
			batch.EndCursor = []byte(found.path)
			return false
		}
		batch.EntityResults = append(batch.EntityResults, &pb.EntityResult{Entity: &pb.Entity{Key: found.key}})
		return true
	})
	return &pb.RunQueryResponse{Batch: batch}, nil
}

func main() {
	address := flag.String("address", "127.0.0.1:0", "where to listen")
	project := flag.String("project", "project", "the only project that exists")
	lose := flag.Int("lose", 0, "lose the answer to every Nth commit")
	flag.Parse()
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	serving := grpc.NewServer(grpc.MaxRecvMsgSize(2*requestBytesMax), grpc.MaxSendMsgSize(256<<20))
	pb.RegisterDatastoreServer(serving, &server{
		project: *project, items: btree.NewG(16, less), transactions: map[string]*transaction{}, lose: *lose,
	})
	log.Printf("listening on %s", listener.Addr())
	log.Fatal(serving.Serve(listener))
}
