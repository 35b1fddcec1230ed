package chip

import "testing"

func TestByName(t *testing.T) {
	for _, name := range Names() {
		c, ok := ByName(name)
		if !ok || c.Name != name {
			t.Fatalf("%s is not found", name)
		}
		if c.VectorCores != 2*c.CubeCores {
			t.Errorf("%s: %d vector cores for %d cube cores", name, c.VectorCores, c.CubeCores)
		}
		if c.CubeFlops16 > 2*4096*float64(c.CubeCores)*c.Clock {
			t.Errorf("%s: %g flops are more than its cores do", name, c.CubeFlops16)
		}
	}
	if _, ok := ByName("910b9"); ok {
		t.Error("an unknown chip was found")
	}
	if c, _ := ByName("910b3"); c.CubeCores != 20 || c.UnifiedBytes != 188160 || c.MemoryBytes != 64<<30 {
		t.Errorf("910b3 is %+v", c)
	}
}
