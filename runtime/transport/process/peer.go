//go:build linux

package process

import (
	"errors"
	"fmt"
	"io"
)

// peer is another rank: the stream to it, the frames that wait to leave and the one that is arriving.
type peer struct {
	ranks  *Ranks
	rank   int
	stream stream
	err    error // nothing moves any more

	senders   map[uint64]*sender
	receivers map[uint64]*receiver

	out   []outgoing
	head  int      // of out: the frame under way
	parts [][]byte // of the frame under way: what has not left
	first [headerSize]byte
	iovec [][]byte // memory of parts

	in      [headerSize]byte
	got     int // bytes of in
	arrival *receiver
	header  header
	into    [][]byte // where the bytes of the arriving frame go
	place   int      // of into, and offset in it
	offset  int
}

// outgoing is a frame that waits: transfer n of a sender, or an acknowledgement.
type outgoing struct {
	tag    uint64
	sender *sender // nil for an acknowledgement
	number uint64
}

// fail ends the traffic with the peer. Frames that wait will not leave.
func (p *peer) fail(err error) {
	if p.err != nil {
		return
	}
	if err == io.EOF {
		p.err = &Gone{p.rank} // matters to who waits for it
		return
	}
	p.err = fmt.Errorf("from rank %d: %w", p.rank, err)
	if p.ranks.err == nil {
		p.ranks.err = p.err
	}
}

// Gone is the error of a wait for a rank whose process has ended.
type Gone struct{ Rank int }

func (g *Gone) Error() string { return fmt.Sprintf("rank %d has ended", g.Rank) }

func (p *peer) writing() bool { return p.err == nil && p.head < len(p.out) }

// flush writes frames until the stream is full.
func (p *peer) flush() {
	for p.writing() {
		f := &p.out[p.head]
		if len(p.parts) == 0 {
			h := header{kind: kindAck, tag: f.tag, number: f.number}
			p.iovec = append(p.iovec[:0], p.first[:])
			if f.sender != nil {
				buffers := f.sender.buffers[f.number%uint64(len(f.sender.buffers))]
				h.kind, h.length, h.checksum = kindData, uint32(f.sender.bytes), checksum(buffers)
				for _, b := range buffers {
					if len(b) > 0 {
						p.iovec = append(p.iovec, b)
					}
				}
			}
			h.encode(p.first[:])
			p.parts = p.iovec
		}
		n, err := p.stream.write(p.parts)
		if err != nil {
			p.fail(err)
			return
		}
		if n == 0 {
			return
		}
		for len(p.parts) > 0 && n >= len(p.parts[0]) {
			n -= len(p.parts[0])
			p.parts = p.parts[1:]
		}
		if len(p.parts) > 0 {
			p.parts[0] = p.parts[0][n:]
			continue
		}
		if f.sender != nil {
			f.sender.done++
		}
		if p.head++; p.head == len(p.out) {
			p.out, p.head = p.out[:0], 0
		}
	}
}

// receive takes what has arrived.
func (p *peer) receive() {
	for p.err == nil {
		dst := p.in[p.got:]
		if p.arrival != nil {
			for p.place < len(p.into) && p.offset == len(p.into[p.place]) {
				p.place, p.offset = p.place+1, 0
			}
			if p.place == len(p.into) {
				if err := p.arrived(); err != nil {
					p.fail(err)
				}
				continue
			}
			dst = p.into[p.place][p.offset:]
		}
		n, err := p.stream.read(dst)
		if err != nil {
			if err == io.EOF && (p.got > 0 || p.arrival != nil) {
				err = errors.New("a message is cut off: the rank has ended")
			}
			p.fail(err)
			return
		}
		if n == 0 {
			return
		}
		if p.arrival != nil {
			p.offset += n
		} else if p.got += n; p.got == headerSize {
			p.got = 0
			if err := p.open(); err != nil {
				p.fail(err)
			}
		}
	}
}

// open looks at the header of a frame and finds where its bytes go. Nothing is allocated that the plan does not ask for.
func (p *peer) open() error {
	h := &p.header
	if err := h.decode(p.in[:]); err != nil {
		return err
	}
	switch h.kind {
	case kindAck:
		s := p.senders[h.tag]
		if s == nil || h.length != 0 || h.number < s.acked || h.number > s.done {
			return fmt.Errorf("an acknowledgement fits no message of the program")
		}
		s.acked = h.number
		s.start()
		return nil
	case kindData:
		r := p.receivers[h.tag]
		switch {
		case r == nil:
			return fmt.Errorf("a message that the program does not have")
		case int(h.length) != r.bytes:
			return fmt.Errorf("a message has %d bytes, not %d", h.length, r.bytes)
		case h.number != r.arrived:
			return fmt.Errorf("message %d comes instead of %d", h.number, r.arrived)
		case h.number-r.done >= r.credit:
			return fmt.Errorf("message %d comes before %d messages ahead of it are taken", h.number, r.credit)
		}
		p.arrival, p.into, p.place, p.offset = r, r.destination(), 0, 0
		return nil
	}
	return fmt.Errorf("a message is of an unknown kind")
}

// arrived ends the frame that has arrived whole.
func (p *peer) arrived() error {
	r := p.arrival
	p.arrival = nil
	if checksum(p.into) != p.header.checksum {
		return fmt.Errorf("a message is damaged: its checksum differs")
	}
	r.complete()
	return nil
}
