// What is in a database, and how a commit changes it: all of it or nothing.
package main

import (
	"bytes"
	"encoding/base64"

	pb "cloud.google.com/go/spanner/apiv1/spannerpb"
	"github.com/google/btree"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

type row struct {
	key    []byte
	values map[string]*structpb.Value
}

func less(a, b row) bool { return bytes.Compare(a.key, b.key) < 0 }

type table struct {
	columns map[string]bool
	key     string
	rows    *btree.BTreeG[row]
}

// What a commit changed, so that a transaction that read it before can be refused.
type commit struct {
	number  int64
	touched []span
}

// Keys of a table from one (with it) to another (without it).
type span struct {
	table    string
	from, to []byte
}

func (a span) meets(b span) bool {
	return a.table == b.table && bytes.Compare(a.from, b.to) < 0 && bytes.Compare(b.from, a.to) < 0
}

type database struct {
	tables  map[string]*table
	commits []commit
	number  int64
}

func keyOf(list *structpb.ListValue) ([]byte, error) {
	if len(list.GetValues()) != 1 {
		return nil, status.Error(codes.InvalidArgument, "Wrong number of key parts")
	}
	key, err := base64.StdEncoding.DecodeString(list.Values[0].GetStringValue())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, "Key part is no base64")
	}
	return key, nil
}

func after(key []byte) []byte { return append(append([]byte{}, key...), 0) }

// The spans that a set of keys is.
func spans(name string, set *pb.KeySet) ([]span, error) {
	var all []span
	for _, list := range set.GetKeys() {
		key, err := keyOf(list)
		if err != nil {
			return nil, err
		}
		all = append(all, span{name, key, after(key)})
	}
	for _, one := range set.GetRanges() {
		var from, to []byte
		var err error
		if open := one.GetStartOpen(); open != nil {
			if from, err = keyOf(open); err == nil {
				from = after(from)
			}
		} else {
			from, err = keyOf(one.GetStartClosed())
		}
		if err != nil {
			return nil, err
		}
		if open := one.GetEndOpen(); open != nil {
			to, err = keyOf(open)
		} else if to, err = keyOf(one.GetEndClosed()); err == nil {
			to = after(to)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, span{name, from, to})
	}
	if set.GetAll() {
		return nil, status.Error(codes.Unimplemented, "all keys")
	}
	return all, nil
}

func conflicts(base *database, reads []read) bool {
	for _, one := range reads {
		if len(base.commits) > 0 && base.commits[0].number > one.after+1 {
			return true // too old to tell
		}
		for at := len(base.commits) - 1; at >= 0 && base.commits[at].number > one.after; at-- {
			for _, touched := range base.commits[at].touched {
				if touched.meets(one.span) {
					return true
				}
			}
		}
	}
	return false
}

// Does all of it, or nothing and says why.
func write(base *database, mutations []*pb.Mutation) ([]span, error) {
	var touched []span
	clones := map[string]*btree.BTreeG[row]{}
	rowsOf := func(name string) (*table, *btree.BTreeG[row], error) {
		found := base.tables[name]
		if found == nil {
			return nil, nil, status.Errorf(codes.NotFound, "Table not found: %s", name)
		}
		if clones[name] == nil {
			clones[name] = found.rows.Clone()
		}
		return found, clones[name], nil
	}
	for _, mutation := range mutations {
		switch change := mutation.Operation.(type) {
		case *pb.Mutation_InsertOrUpdate:
			of, rows, err := rowsOf(change.InsertOrUpdate.Table)
			if err != nil {
				return nil, err
			}
			for _, list := range change.InsertOrUpdate.Values {
				made := row{values: map[string]*structpb.Value{}}
				for at, column := range change.InsertOrUpdate.Columns {
					value := list.Values[at]
					decoded, err := base64.StdEncoding.DecodeString(value.GetStringValue())
					if err != nil || !of.columns[column] {
						return nil, status.Errorf(codes.FailedPrecondition, "Invalid value for column %s", column)
					}
					if len(decoded) > valueBytesMax {
						return nil, status.Errorf(codes.FailedPrecondition,
							"New value exceeds the maximum size limit for this column: %d", valueBytesMax)
					}
					made.values[column] = value
					if column == of.key {
						made.key = decoded
					}
				}
				if before, found := rows.Get(made); found {
					for column, value := range before.values {
						if made.values[column] == nil {
							made.values[column] = value
						}
					}
				}
				rows.ReplaceOrInsert(made)
				touched = append(touched, span{change.InsertOrUpdate.Table, made.key, after(made.key)})
			}
		case *pb.Mutation_Delete_:
			_, rows, err := rowsOf(change.Delete.Table)
			if err != nil {
				return nil, err
			}
			gone, err := spans(change.Delete.Table, change.Delete.KeySet)
			if err != nil {
				return nil, err
			}
			for _, one := range gone {
				var keys []row
				rows.AscendRange(row{key: one.from}, row{key: one.to}, func(found row) bool {
					keys = append(keys, found)
					return true
				})
				for _, key := range keys {
					rows.Delete(key)
				}
			}
			touched = append(touched, gone...)
		default:
			return nil, status.Errorf(codes.Unimplemented, "%T", change)
		}
	}
	for name, rows := range clones {
		base.tables[name].rows = rows
	}
	return touched, nil
}
