// A server that speaks the interface of Google Spanner, as far as the store `spanner` of Trellis uses it.
//
// It promises what the store relies on: a transaction that reads and writes takes effect at the moment of its commit or
// not at all (its reads are checked then, and ABORTED is the answer if anything that it read was changed, be it a key or
// a range); a commit that is sent again after it was done gives the same answer and is not done again; a transaction that
// only reads sees one moment. Sessions, transactions and databases that do not exist are NOT_FOUND; a value over the
// limit of Spanner is refused; large values come in several pieces.
//
// It has no SQL but one form of CREATE TABLE, no indexes, no timestamps in the past, no locks, no partitions, and keeps
// everything in memory. It knows tables whose primary key is one column of BYTES.
//
// With -lose N the answer to every Nth commit is lost, one time after it was done and one time before.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"regexp"
	"strings"
	"sync"

	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	databasepb "cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	instancepb "cloud.google.com/go/spanner/admin/instance/apiv1/instancepb"
	pb "cloud.google.com/go/spanner/apiv1/spannerpb"
	"github.com/google/btree"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	valueBytesMax   = 10 << 20
	pieceBytesMax   = 100_000
	commitsKept     = 100_000
	messageBytesMax = 256 << 20
)

type read struct {
	span  span
	after int64
}

type transaction struct {
	database  string
	session   string
	reads     []read
	snapshot  map[string]*table // of one that only reads
	committed *pb.CommitResponse
	ended     bool
	aborted   bool
}

type server struct {
	pb.UnimplementedSpannerServer
	mutex        sync.Mutex
	instances    map[string]bool
	databases    map[string]*database
	sessions     map[string]string
	transactions map[string]*transaction
	next         int64
	lose, count  int
}

// Who makes instances and databases.
type instanceAdmin struct {
	instancepb.UnimplementedInstanceAdminServer
	server *server
}

type databaseAdmin struct {
	databasepb.UnimplementedDatabaseAdminServer
	server *server
}

func (a instanceAdmin) CreateInstance(_ context.Context, r *instancepb.CreateInstanceRequest) (*longrunningpb.Operation, error) {
	s := a.server
	s.mutex.Lock()
	defer s.mutex.Unlock()
	name := r.Parent + "/instances/" + r.InstanceId
	if s.instances[name] {
		return nil, status.Errorf(codes.AlreadyExists, "Instance already exists: %s", name)
	}
	s.instances[name] = true
	return &longrunningpb.Operation{Name: name + "/operations/made", Done: true}, nil
}

var createTable = regexp.MustCompile(`(?is)^\s*CREATE\s+TABLE\s+(\w+)\s*\((.*)\)\s*PRIMARY\s+KEY\s*\(\s*(\w+)\s*\)\s*$`)

func (a databaseAdmin) CreateDatabase(_ context.Context, r *databasepb.CreateDatabaseRequest) (*longrunningpb.Operation, error) {
	s := a.server
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if !s.instances[r.Parent] {
		return nil, status.Errorf(codes.NotFound, "Instance not found: %s", r.Parent)
	}
	name := r.Parent + "/databases/" + strings.Trim(strings.TrimPrefix(r.CreateStatement, "CREATE DATABASE "), "`")
	if s.databases[name] != nil {
		return nil, status.Errorf(codes.AlreadyExists, "Database already exists: %s", name)
	}
	made := &database{tables: map[string]*table{}}
	for _, statement := range r.ExtraStatements {
		parts := createTable.FindStringSubmatch(statement)
		if parts == nil {
			return nil, status.Errorf(codes.InvalidArgument, "Error parsing Spanner DDL statement: %s", statement)
		}
		columns := map[string]bool{}
		for _, column := range strings.Split(parts[2], ",") {
			columns[strings.Fields(column)[0]] = true
		}
		made.tables[parts[1]] = &table{columns: columns, key: parts[3], rows: btree.NewG(16, less)}
	}
	s.databases[name] = made
	return &longrunningpb.Operation{Name: name + "/operations/made", Done: true}, nil
}

func (s *server) CreateSession(_ context.Context, r *pb.CreateSessionRequest) (*pb.Session, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.databases[r.Database] == nil {
		return nil, status.Errorf(codes.NotFound, "Database not found: %s", r.Database)
	}
	s.next++
	name := fmt.Sprintf("%s/sessions/%d", r.Database, s.next)
	s.sessions[name] = r.Database
	return &pb.Session{Name: name, CreateTime: timestamppb.Now()}, nil
}

func (s *server) DeleteSession(_ context.Context, r *pb.DeleteSessionRequest) (*emptypb.Empty, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	delete(s.sessions, r.Name)
	return &emptypb.Empty{}, nil
}

func (s *server) database(session string) (string, *database, error) {
	name, known := s.sessions[session]
	if !known {
		return "", nil, status.Errorf(codes.NotFound, "Session not found: %s", session)
	}
	return name, s.databases[name], nil
}

func (s *server) begin(session string, options *pb.TransactionOptions) (string, *transaction, error) {
	name, base, err := s.database(session)
	if err != nil {
		return "", nil, err
	}
	s.next++
	id := fmt.Sprintf("transaction %d", s.next)
	begun := &transaction{database: name, session: session}
	if options.GetReadOnly() != nil {
		begun.snapshot = map[string]*table{}
		for name, one := range base.tables {
			begun.snapshot[name] = &table{columns: one.columns, key: one.key, rows: one.rows.Clone()}
		}
	}
	s.transactions[id] = begun
	return id, begun, nil
}

func (s *server) transaction(session string, id []byte) (*transaction, error) {
	known := s.transactions[string(id)]
	if known == nil || known.session != session {
		return nil, status.Errorf(codes.NotFound, "Transaction not found: %q", id)
	}
	return known, nil
}

func (s *server) BeginTransaction(_ context.Context, r *pb.BeginTransactionRequest) (*pb.Transaction, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	id, _, err := s.begin(r.Session, r.Options)
	if err != nil {
		return nil, err
	}
	return &pb.Transaction{Id: []byte(id)}, nil
}

func (s *server) Rollback(_ context.Context, r *pb.RollbackRequest) (*emptypb.Empty, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	ended, err := s.transaction(r.Session, r.TransactionId)
	if err == nil && ended.committed == nil {
		ended.ended = true
	}
	return &emptypb.Empty{}, nil
}

func (s *server) StreamingRead(r *pb.ReadRequest, stream pb.Spanner_StreamingReadServer) error {
	rows, metadata, err := s.read(r)
	if err != nil {
		return err
	}
	part := &pb.PartialResultSet{Metadata: metadata}
	size := 0
	for _, values := range rows {
		for _, value := range values {
			text, isText := value.Kind.(*structpb.Value_StringValue)
			// A long value comes in pieces: every message but the last ends within it.
			for isText && size+len(text.StringValue) > pieceBytesMax {
				cut := max(pieceBytesMax-size, 1)
				part.Values = append(part.Values, structpb.NewStringValue(text.StringValue[:cut]))
				part.ChunkedValue = true
				if err := stream.Send(part); err != nil {
					return err
				}
				text = &structpb.Value_StringValue{StringValue: text.StringValue[cut:]}
				part, size = &pb.PartialResultSet{}, 0
			}
			if isText {
				size += len(text.StringValue)
				value = structpb.NewStringValue(text.StringValue)
			}
			part.Values = append(part.Values, value)
		}
	}
	return stream.Send(part)
}

func (s *server) read(r *pb.ReadRequest) ([][]*structpb.Value, *pb.ResultSetMetadata, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	_, base, err := s.database(r.Session)
	if err != nil {
		return nil, nil, err
	}
	metadata := &pb.ResultSetMetadata{RowType: &pb.StructType{}}
	var inside *transaction
	switch selector := r.GetTransaction().GetSelector().(type) {
	case *pb.TransactionSelector_Begin:
		var id string
		if id, inside, err = s.begin(r.Session, selector.Begin); err != nil {
			return nil, nil, err
		}
		metadata.Transaction = &pb.Transaction{Id: []byte(id)}
	case *pb.TransactionSelector_Id:
		if inside, err = s.transaction(r.Session, selector.Id); err != nil {
			return nil, nil, err
		}
	case *pb.TransactionSelector_SingleUse:
		if selector.SingleUse.GetReadOnly() == nil {
			return nil, nil, status.Error(codes.InvalidArgument, "A single-use transaction for a read must only read")
		}
	}
	tables := base.tables
	if inside != nil && inside.snapshot != nil {
		tables = inside.snapshot
	}
	from := tables[r.Table]
	if from == nil {
		return nil, nil, status.Errorf(codes.NotFound, "Table not found: %s", r.Table)
	}
	for _, column := range r.Columns {
		if !from.columns[column] {
			return nil, nil, status.Errorf(codes.NotFound, "Column not found in table %s: %s", r.Table, column)
		}
		metadata.RowType.Fields = append(metadata.RowType.Fields,
			&pb.StructType_Field{Name: column, Type: &pb.Type{Code: pb.TypeCode_BYTES}})
	}
	wanted, err := spans(r.Table, r.KeySet)
	if err != nil {
		return nil, nil, err
	}
	var rows [][]*structpb.Value
	for _, one := range wanted {
		if inside != nil && inside.snapshot == nil {
			inside.reads = append(inside.reads, read{one, base.number})
		}
		from.rows.AscendRange(row{key: one.from}, row{key: one.to}, func(found row) bool {
			var values []*structpb.Value
			for _, column := range r.Columns {
				value := found.values[column]
				if value == nil {
					value = structpb.NewNullValue()
				}
				values = append(values, value)
			}
			rows = append(rows, values)
			return r.Limit == 0 || int64(len(rows)) < r.Limit
		})
	}
	return rows, metadata, nil
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
	_, base, err := s.database(r.Session)
	if err != nil {
		return nil, err
	}
	var inside *transaction
	if id := r.GetTransactionId(); id != nil {
		if inside, err = s.transaction(r.Session, id); err != nil {
			return nil, err
		}
		if inside.committed != nil {
			return inside.committed, nil
		}
		if inside.aborted {
			return nil, status.Error(codes.Aborted, "Transaction was aborted")
		}
		if inside.ended || inside.snapshot != nil {
			return nil, status.Error(codes.FailedPrecondition, "The transaction has ended, or only reads")
		}
		if conflicts(base, inside.reads) {
			inside.aborted = true
			return nil, status.Error(codes.Aborted, "Transaction was aborted: what it read was changed")
		}
	}
	changed, err := write(base, r.Mutations)
	if err != nil {
		return nil, err
	}
	base.number++
	base.commits = append(base.commits, commit{base.number, changed})
	if len(base.commits) > commitsKept {
		base.commits = base.commits[commitsKept/2:]
	}
	answer := &pb.CommitResponse{CommitTimestamp: timestamppb.Now()}
	if inside != nil {
		inside.committed, inside.reads = answer, nil
	}
	return answer, nil
}

func main() {
	address := flag.String("address", "127.0.0.1:0", "where to listen")
	lose := flag.Int("lose", 0, "lose the answer to every Nth commit")
	flag.Parse()
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	made := &server{
		instances: map[string]bool{}, databases: map[string]*database{}, sessions: map[string]string{},
		transactions: map[string]*transaction{}, lose: *lose,
	}
	serving := grpc.NewServer(grpc.MaxRecvMsgSize(messageBytesMax), grpc.MaxSendMsgSize(messageBytesMax))
	pb.RegisterSpannerServer(serving, made)
	databasepb.RegisterDatabaseAdminServer(serving, databaseAdmin{server: made})
	instancepb.RegisterInstanceAdminServer(serving, instanceAdmin{server: made})
	log.Printf("listening on %s", listener.Addr())
	log.Fatal(serving.Serve(listener))
}
