// Package transport carries what ranks tell each other: messages in queues, one queue for each message of a program, and the
// collectives of groups. A rank sees a transport through an Endpoint, whatever lies between it and the others.
package transport

import "errors"

// ErrStopped is what waits end with when the run is stopped. It is never the reason.
var ErrStopped = errors.New("stopped")

// Transport joins the ranks of a run.
type Transport interface {
	// Holds tells whether a rank lives in this process.
	Holds(rank int) bool
	// Endpoint is what a rank of this process has of the transport. Waits end when stop is closed. waiting is told for which
	// rank the caller waits, and -1 when it no longer does.
	Endpoint(rank int, stop <-chan struct{}, waiting func(rank int)) Endpoint
}

// Endpoint is the transport as one rank sees it. It and what it returns are for the goroutine of that rank only. All ranks
// ask for the same queues and groups before the first of them is used.
type Endpoint interface {
	// End is the rank's side of a queue that begins or ends at it.
	End(q Queue) End
	// Join makes the rank a member of a group that it belongs to.
	Join(g Members) Group
}

// Queue carries one message of a program from one rank to another, again and again and in order.
type Queue struct {
	ID          int // which both ends agree on, and no other queue or group has
	From, To    int // ranks
	Outstanding int // most transfers that one side has posted and that are not complete
	Bytes       int // of a transfer
}

// End is one side of a queue. A transfer is complete for the sender when its buffers may be written again, for the receiver
// when they hold what was sent. Rendezvous, where both are the same moment, is allowed.
type End interface {
	// Post gives the buffers of the next transfer. It does not wait.
	Post(buffers [][]byte)
	// Done tells whether transfer n, counted from 0, is complete. It does not wait.
	Done(n uint64) bool
	// Wait returns when transfer n is complete, or the error that ends the run.
	Wait(n uint64) error
}

// Members says who is in a group and what it will do at most.
type Members struct {
	ID     int   // which all members agree on, and no other queue or group has
	Ranks  []int // ascending
	Reduce []int // elements of the buffers of Reduce; the same for all members
	// Elements of the buffers of Collect and of that of Scatter, 0 for none, and the part of a buffer that each member has.
	Collect []int
	Scatter int
	Part    func(elements, member int) (lo, hi int)
	Values  int // most values that a member gives to Gather
}

// Group is what a member sees of a group. All members call the same collectives in the same order. Sums add in the order of
// ranks, so that they do not depend on who comes first.
type Group interface {
	// Reduce replaces the buffers of every member by their sums over the members.
	Reduce(buffers [][]float32) error
	// Scatter replaces the part that this member has of a buffer by its sum over the members. The others may be written again
	// when it returns. scratch has as many elements as two parts.
	Scatter(buffer, scratch []float32) error
	// Collect gives every member the parts of the buffers that the others hold.
	Collect(buffers [][]float32) error
	// Gather returns copies of the values of all members, by member.
	Gather(values []float64) ([][]float64, error)
}

// Share is the elements, out of n, that one of some members adds up in Reduce.
func Share(n, member, members int) (lo, hi int) {
	return n * member / members, n * (member + 1) / members
}
