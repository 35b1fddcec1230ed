// Package threefry is the counter-based random number generator of ppc: Threefry-2x32 with 20 rounds (Salmon, Moraes,
// Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC11). A number depends on seed, name, step, micro-batch and
// element only, never on where or in which order it is drawn.
package threefry

import "hash/fnv"

// Key is the key or the counter of a block: two words.
type Key [2]uint32

// rotations of the 2x32 form, in groups of four rounds.
var rotations = [8]uint{13, 15, 26, 6, 17, 29, 16, 24}

// Block encrypts a counter.
func Block(key, counter Key) Key {
	ks := [3]uint32{key[0], key[1], 0x1BD11BDA ^ key[0] ^ key[1]}
	x0, x1 := counter[0]+ks[0], counter[1]+ks[1]
	for r := range 20 {
		x0 += x1
		k := rotations[r%8]
		x1 = x1<<k | x1>>(32-k)
		x1 ^= x0
		if r%4 == 3 {
			n := uint32(r/4 + 1)
			x0 += ks[n%3]
			x1 += ks[(n+1)%3] + n
		}
	}
	return Key{x0, x1}
}

// Stream is the key of a named tensor: seed and the FNV-1a hash of its canonical name, then step and micro-batch.
func Stream(seed uint32, name string, step, micro uint32) Key {
	return Hashed(seed, Hash(name), step, micro)
}

// Hash is the 32-bit FNV-1a hash of a canonical name.
func Hash(name string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(name))
	return h.Sum32()
}

// Hashed is Stream with the hash of the name.
func Hashed(seed, hash, step, micro uint32) Key { return Block(Key{seed, hash}, Key{step, micro}) }

// Keeps reports whether dropout with probability p keeps element e of a stream: its random number, as a fraction of 2^32,
// is not below p.
func Keeps(k Key, e uint64, p float64) bool { return float64(k.Element(e)[0]) >= p*(1<<32) }

// Element returns the block of element e of a stream; its first word is the element's random number.
func (k Key) Element(e uint64) Key { return Block(k, Key{uint32(e >> 32), uint32(e)}) }
