package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"

	"github.com/urfave/cli/v3"
)

// apart refuses to write over what the run reads. -save may replace the file of -init, whose values it carries on.
func apart(c *cli.Command, name string) error {
	files := func(flag string) (out []string) {
		for _, v := range c.StringSlice(flag) {
			if m := nameOfFile.FindStringSubmatch(v); m != nil {
				v = m[2]
			}
			out = append(out, v)
		}
		return out
	}
	reads := append(files("input"), name, c.String("data"))
	same := func(flag, written string, reads ...string) error {
		w, err := os.Stat(written)
		if err != nil || !w.Mode().IsRegular() {
			return nil
		}
		for _, f := range reads {
			if r, err := os.Stat(f); err == nil && os.SameFile(r, w) {
				return usagef("-%s would write over %s, which the run reads", flag, written)
			}
		}
		return nil
	}
	if err := same("save", c.String("save"), reads...); err != nil {
		return err
	}
	if err := same("log", c.String("log"), append(reads, c.String("init"))...); err != nil {
		return err
	}
	for _, f := range files("output") {
		if err := same("output", f, append(reads, c.String("init"))...); err != nil {
			return err
		}
	}
	for _, w := range []struct {
		flag  string
		files []string
	}{{"save", []string{c.String("save")}}, {"log", []string{c.String("log")}}, {"output", files("output")}} {
		for _, f := range w.files {
			switch {
			case f == "":
			case isStdout(f):
				return usagef("-%s would write into the standard output, which has what the run shows; name a file, or a pipe like >(gzip > FILE)", w.flag)
			case c.String("checkpoint") != "" && within(f, c.String("checkpoint")):
				return usagef("-%s would write %s into the folder of -checkpoint, which has checkpoints only", w.flag, f)
			case rankLog.MatchString(filepath.Base(f)) && within(f, c.String("log-dir")):
				return usagef("-%s would write over %s, a log of the ranks", w.flag, f)
			}
		}
	}
	return nil
}

// isStdout reports whether a name is that of this process's standard output, unless that is thrown away.
func isStdout(name string) bool {
	f, err1 := os.Stat(name)
	out, err2 := os.Stdout.Stat()
	null, err3 := os.Stat(os.DevNull)
	return err1 == nil && err2 == nil && os.SameFile(f, out) && (err3 != nil || !os.SameFile(f, null))
}

// rankLog is the name of a file that ranks or launch write to -log-dir.
var rankLog = regexp.MustCompile(`^(worker_\d+|scheduler)\.log$`)

// within reports whether a file is, or would be, in a folder itself.
func within(file, folder string) bool {
	a, err1 := filepath.Abs(filepath.Dir(file))
	b, err2 := filepath.Abs(folder)
	return err1 == nil && err2 == nil && a == b
}

// writable checks before a run that its result can be stored.
func writable(name string) error {
	if real, err := filepath.EvalSymlinks(name); err == nil {
		name = real
	}
	switch st, err := os.Stat(name); {
	case err == nil && st.IsDir():
		return errors.New("this is a folder")
	case err == nil && !st.Mode().IsRegular():
		return nil // a device or a pipe: opened when there is something to write
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".ppc-*")
	if err != nil {
		return err
	}
	f.Close()
	return os.Remove(f.Name())
}

// lineLog is a file that has whole lines at any time: a run may be killed, or the disk be full.
type lineLog struct {
	file *os.File
	size int64
}

// Write writes a line.
func (l *lineLog) Write(line []byte) (int, error) {
	n, err := l.file.Write(line)
	if err != nil && n > 0 {
		l.file.Truncate(l.size)
	} else if err == nil {
		l.size += int64(n)
	}
	return n, err
}
