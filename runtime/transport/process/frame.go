//go:build linux

// Package process joins ranks that are processes of one machine: over unix sockets, or over memory that two ranks share, with
// the socket beside it to wake a sleeping rank and to notice a dead one.
//
// A rank moves its own bytes. Nothing happens behind its back: sends that do not fit go on, and arrivals are taken, whenever
// the rank posts, asks or waits. So there are no locks, and a wait serves all peers, not only the one it waits for.
package process

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// A frame is a header and the bytes of one transfer, or an acknowledgement, which has no bytes. All numbers are little endian.
//
//	0  magic
//	4  kind
//	8  tag       the queue: see queueTag and groupTag
//	16 number    of the transfer; of an acknowledgement, how many transfers the receiver is done with
//	24 length    of the bytes behind the header
//	28 checksum  of the bytes behind the header
//	32 checksum  of the header up to here
const (
	headerSize = 36
	magic      = 0x31637070 // "ppc1"

	kindData = 1
	kindAck  = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type header struct {
	kind     uint32
	tag      uint64
	number   uint64
	length   uint32
	checksum uint32
}

func (h *header) encode(b []byte) {
	binary.LittleEndian.PutUint32(b, magic)
	binary.LittleEndian.PutUint32(b[4:], h.kind)
	binary.LittleEndian.PutUint64(b[8:], h.tag)
	binary.LittleEndian.PutUint64(b[16:], h.number)
	binary.LittleEndian.PutUint32(b[24:], h.length)
	binary.LittleEndian.PutUint32(b[28:], h.checksum)
	binary.LittleEndian.PutUint32(b[32:], crc32.Checksum(b[:32], castagnoli))
}

func (h *header) decode(b []byte) error {
	if binary.LittleEndian.Uint32(b) != magic || binary.LittleEndian.Uint32(b[32:]) != crc32.Checksum(b[:32], castagnoli) {
		return fmt.Errorf("the header of a message is damaged")
	}
	h.kind = binary.LittleEndian.Uint32(b[4:])
	h.tag = binary.LittleEndian.Uint64(b[8:])
	h.number = binary.LittleEndian.Uint64(b[16:])
	h.length = binary.LittleEndian.Uint32(b[24:])
	h.checksum = binary.LittleEndian.Uint32(b[28:])
	return nil
}

// checksum of the bytes of a transfer.
func checksum(buffers [][]byte) uint32 {
	sum := uint32(0)
	for _, b := range buffers {
		sum = crc32.Update(sum, castagnoli, b)
	}
	return sum
}

// queueTag and groupTag name queues in frames: those of messages, and the phases of collectives of a group.
func queueTag(id int) uint64             { return uint64(id) << 3 }
func groupTag(id int, phase uint) uint64 { return uint64(id)<<3 | uint64(phase) }
