//go:build linux || darwin

package checkpoint

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// One at a time has the lock, also while others give it back and take it; it leaves no file.
func TestLock(t *testing.T) {
	s := &Store{Dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(s.Dir, lockName), []byte("process 1 on a machine that was switched off\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var holders, refused, taken atomic.Int32
	for range 8 {
		wg.Go(func() {
			for range 200 {
				l, err := s.Lock(nil)
				if err != nil {
					if !strings.Contains(err.Error(), "another run writes checkpoints to this folder") {
						t.Error(err)
					}
					refused.Add(1)
					continue
				}
				taken.Add(1)
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d have the lock", n)
				}
				_, err = s.Lock(nil)
				if err == nil {
					t.Error("the lock is given twice")
				}
				holders.Add(-1)
				l.Close()
			}
		})
	}
	wg.Wait()
	if taken.Load() == 0 {
		t.Errorf("taken %d times, refused %d times", taken.Load(), refused.Load())
	}
	if left := names(t, s.Dir); len(left) > 0 {
		t.Error(left)
	}
}
