// Package emulator runs Ascend C kernels on the CPU. It embeds a header set
// with the names and semantics of the Ascend C API, builds kernels on it with
// g++ into one program, the kernel server, and drives that program over a pipe
// and a shared arena.
//
// The headers refuse what the chip would refuse: every fault names the kernel,
// the block and the call. One thread runs per block, so blocks are concurrent.
package emulator

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"sort"
	"strings"
	"sync"
)

//go:embed include server
var sources embed.FS

// ParameterKind tells how a kernel's parameter is passed.
type ParameterKind int

const (
	Buffer  ParameterKind = iota // GM_ADDR
	Float32                      // float by value
	Int32                        // int32_t by value
)

// Kernel is one entry function of a kernel set.
type Kernel struct {
	Name       string // of the extern "C" function
	Parameters []ParameterKind
}

// Source is a kernel file. Its name is for messages only.
type Source struct {
	Name string
	Text []byte
}

// KernelSet is what Build compiles into one kernel server: Sources define the
// functions of Kernels. Launch numbers kernels by their index.
type KernelSet struct {
	Sources     []Source
	Kernels     []Kernel
	VectorCores int // SyncAll of more blocks than cores is refused
	CubeCores   int
}

// compilerFlags are part of the key of every cached object. Contraction is off
// because the vector unit rounds products before it adds.
var compilerFlags = []string{"-std=c++17", "-O2", "-ffp-contract=off", "-pthread"}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Build compiles the kernels of set and returns the path of the kernel server.
// Objects and servers are kept in cacheDir under the hash of all that went into
// them, so an unchanged set costs no compilation. It fails with a clear error
// when g++ is missing, and with the compiler's text when a kernel does not compile.
func Build(ctx context.Context, set KernelSet, cacheDir string) (string, error) {
	compiler, err := exec.LookPath("g++")
	if err != nil {
		return "", fmt.Errorf("the emulator builds kernels with g++, which was not found: %w", err)
	}
	version, err := exec.CommandContext(ctx, compiler, "-dumpfullversion", "-dumpmachine").Output()
	if err != nil {
		return "", fmt.Errorf("asking g++ for its version: %w", err)
	}
	b := &builder{compiler: compiler, cache: cacheDir}
	if err := b.unpack(version); err != nil {
		return "", err
	}
	units, err := b.units(set)
	if err != nil {
		return "", err
	}
	objects, err := b.compileAll(ctx, units)
	if err != nil {
		return "", err
	}
	return b.link(ctx, objects)
}

// maxCompilerText bounds what an error repeats of the compiler's words.
const maxCompilerText = 4 << 10

type builder struct {
	compiler string
	cache    string
	tree     string // the unpacked embedded sources
	base     []byte // hash of compiler, flags and embedded sources
}

// unpack writes the embedded sources to the cache and sets the base hash.
func (b *builder) unpack(version []byte) error {
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\n%s\n%s\n", b.compiler, version, strings.Join(compilerFlags, " "))
	contents := map[string][]byte{}
	var paths []string
	err := fs.WalkDir(sources, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := sources.ReadFile(path)
		if err != nil {
			return err
		}
		paths = append(paths, path)
		contents[path] = data
		return nil
	})
	if err != nil {
		return err
	}
	sort.Strings(paths)
	for _, path := range paths {
		fmt.Fprintf(hash, "%s %d\n", path, len(contents[path]))
		hash.Write(contents[path])
	}
	b.base = hash.Sum(nil)
	b.tree = filepath.Join(b.cache, "headers-"+hex.EncodeToString(b.base[:8]))
	for _, path := range paths {
		if err := writeOnce(filepath.Join(b.tree, filepath.FromSlash(path)), contents[path]); err != nil {
			return err
		}
	}
	return nil
}

// units lists the translation units: the server's own, the kernels' and the table.
func (b *builder) units(set KernelSet) ([]Source, error) {
	var units []Source
	for _, name := range []string{"core.cpp", "launch.cpp", "main.cpp"} {
		data, err := sources.ReadFile("server/" + name)
		if err != nil {
			return nil, err
		}
		units = append(units, Source{name, data})
	}
	for _, kernel := range set.Kernels {
		if !identifier.MatchString(kernel.Name) {
			return nil, fmt.Errorf("kernel name %q is not an identifier", kernel.Name)
		}
	}
	units = append(units, set.Sources...)
	return append(units, Source{"table.cpp", table(set)}), nil
}

// table emits the list of kernels with a caller for each, which turns words
// into the kernel's parameters.
func table(set KernelSet) []byte {
	var declarations, rows bytes.Buffer
	for _, kernel := range set.Kernels {
		var types, values []string
		for i, kind := range kernel.Parameters {
			switch kind {
			case Float32:
				types = append(types, "float")
				values = append(values, fmt.Sprintf("AscendC::emulator::FloatOf(uint32_t(a[%d]))", i))
			case Int32:
				types = append(types, "int32_t")
				values = append(values, fmt.Sprintf("int32_t(a[%d])", i))
			default:
				types = append(types, "GM_ADDR")
				values = append(values, fmt.Sprintf("reinterpret_cast<GM_ADDR>(a[%d])", i))
			}
		}
		fmt.Fprintf(&declarations, "extern \"C\" void %s(%s);\n", kernel.Name, strings.Join(types, ", "))
		fmt.Fprintf(&rows, "    {%q, %d, [](const uint64_t* a) { (void)a; %s(%s); }},\n",
			kernel.Name, len(kernel.Parameters), kernel.Name, strings.Join(values, ", "))
	}
	// A table without rows is not C++.
	fmt.Fprintf(&rows, "    {nullptr, 0, nullptr},\n")
	return fmt.Appendf(nil, "#include \"launch.h\"\n\n%s\nnamespace AscendC::emulator {\nconst Kernel kKernels[] = {\n%s};\n"+
		"const uint32_t kKernelCount = %d;\nconst int64_t kVectorCores = %d;\nconst int64_t kCubeCores = %d;\n}\n",
		&declarations, &rows, len(set.Kernels), set.VectorCores, set.CubeCores)
}

// compileAll compiles the units on all processors and returns their objects in order.
func (b *builder) compileAll(ctx context.Context, units []Source) ([]string, error) {
	objects := make([]string, len(units))
	failures := make([]error, len(units))
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(units)) {
		workers.Go(func() {
			for i := range next {
				objects[i], failures[i] = b.compile(ctx, units[i])
			}
		})
	}
	for i := range units {
		next <- i
	}
	close(next)
	workers.Wait()
	return objects, errors.Join(failures...)
}

func (b *builder) compile(ctx context.Context, u Source) (string, error) {
	hash := sha256.New()
	hash.Write(b.base)
	hash.Write(u.Text)
	key := hex.EncodeToString(hash.Sum(nil)[:16])
	object := filepath.Join(b.cache, key+".o")
	if _, err := os.Stat(object); err == nil {
		return object, nil
	}
	source := filepath.Join(b.cache, key+".cpp")
	if err := writeOnce(source, u.Text); err != nil {
		return "", err
	}
	arguments := append([]string{}, compilerFlags...)
	arguments = append(arguments, "-I"+filepath.Join(b.tree, "include"), "-I"+filepath.Join(b.tree, "server"), "-c", source)
	if err := b.produce(ctx, object, arguments); err != nil {
		return "", fmt.Errorf("%s: %w", u.Name, err)
	}
	return object, nil
}

func (b *builder) link(ctx context.Context, objects []string) (string, error) {
	hash := sha256.New()
	for _, object := range objects {
		fmt.Fprintln(hash, filepath.Base(object))
	}
	server := filepath.Join(b.cache, "server-"+hex.EncodeToString(hash.Sum(nil)[:16]))
	if _, err := os.Stat(server); err == nil {
		return server, nil
	}
	if err := b.produce(ctx, server, append([]string{"-pthread"}, objects...)); err != nil {
		return "", fmt.Errorf("linking the kernel server: %w", err)
	}
	return server, nil
}

// produce runs the compiler into a temporary file and renames it to target, so
// that an interrupted or concurrent build leaves no half-written result.
func (b *builder) produce(ctx context.Context, target string, arguments []string) error {
	temporary, err := os.CreateTemp(b.cache, "build-*")
	if err != nil {
		return err
	}
	temporary.Close()
	defer os.Remove(temporary.Name())
	command := exec.CommandContext(ctx, b.compiler, append(arguments, "-o", temporary.Name())...)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("g++ failed (%w):\n%s", err, bytes.TrimSpace(output[:min(len(output), maxCompilerText)]))
	}
	return os.Rename(temporary.Name(), target)
}

// writeOnce writes a content-addressed file unless it exists with these bytes.
func writeOnce(path string, data []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), "write-*")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name())
	if _, err := temporary.Write(data); err != nil {
		temporary.Close()
		return err
	}
	if err := temporary.Close(); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), path)
}
