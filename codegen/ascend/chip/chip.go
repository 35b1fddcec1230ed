// Package chip has the figures of the accelerators that ppc compiles for: what
// the code generator needs for its tilings and the planner for its costs.
package chip

// Chip is one device. A package of two dies is two devices. Sizes are bytes,
// rates are per second.
type Chip struct {
	Name        string
	CubeCores   int // matrix cores
	VectorCores int
	Clock       float64 // Hz

	UnifiedBytes int // of a vector core, as far as kernels may use it
	L1Bytes      int // of a cube core, and below
	L0ABytes     int
	L0BBytes     int
	L0CBytes     int

	MemoryBytes     int
	MemoryBandwidth float64 // bytes/s
	L2Bytes         int

	CubeFlops16   float64 // multiply-adds counted twice, fp16 and bf16
	CubeFlops32   float64
	VectorFlops32 float64

	NodeBandwidth    float64 // bytes/s to a device of the same node, one way
	NetworkBandwidth float64 // bytes/s to another node, one way
}

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// row is what differs between the chips.
type row struct {
	name        string
	cubeCores   int
	clockGHz    float64
	nameplate   float64 // 1e12 fp16 operations per second
	memoryGiB   int
	memoryRate  float64 // 1e12 bytes/s
	l2MiB       int
	nodeRate    float64 // 1e9 bytes/s
	networkRate float64
}

// The chips of architecture 2201. Nameplate and cores x clock disagree by some
// per cent; the lower one counts.
var rows = []row{
	{"910b1", 24, 1.85, 400, 64, 1.6, 192, 196, 25},
	{"910b2", 24, 1.8, 376, 64, 1.6, 192, 196, 25},
	{"910b3", 20, 1.8, 313, 64, 1.6, 192, 196, 25},
	{"910b4", 20, 1.5, 280, 32, 0.8, 96, 32, 25},
	{"910c", 24, 1.8, 376, 64, 1.6, 192, 196, 25},
}

// A cube core does 4096 fp16 multiply-adds per cycle and a quarter of that in
// fp32; a vector core has 64 fp32 lanes.
func (r row) chip() Chip {
	clock := r.clockGHz * 1e9
	cube := min(r.nameplate*1e12, 2*4096*float64(r.cubeCores)*clock)
	vectorCores := 2 * r.cubeCores
	return Chip{
		Name: r.name, CubeCores: r.cubeCores, VectorCores: vectorCores, Clock: clock,
		UnifiedBytes: 188160, L1Bytes: 512 * kib, L0ABytes: 64 * kib, L0BBytes: 64 * kib, L0CBytes: 128 * kib,
		MemoryBytes: r.memoryGiB * gib, MemoryBandwidth: r.memoryRate * 1e12, L2Bytes: r.l2MiB * mib,
		CubeFlops16: cube, CubeFlops32: cube / 4, VectorFlops32: 64 * float64(vectorCores) * clock,
		NodeBandwidth: r.nodeRate * 1e9, NetworkBandwidth: r.networkRate * 1e9,
	}
}

// Names returns the names of all chips in order.
func Names() []string {
	names := make([]string, len(rows))
	for i, r := range rows {
		names[i] = r.name
	}
	return names
}

// ByName returns the chip of that name.
func ByName(name string) (Chip, bool) {
	for _, r := range rows {
		if r.name == name {
			return r.chip(), true
		}
	}
	return Chip{}, false
}
