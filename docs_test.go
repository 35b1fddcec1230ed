package ppc

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend"
)

// block is a fenced block of a page.
type block struct {
	page  string
	line  int
	kind  string // the word behind the fence
	lines []string
}

func blocks(t *testing.T) (list []block) {
	t.Helper()
	pages, err := filepath.Glob("docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal("no pages", err)
	}
	for _, page := range append([]string{"README.md"}, pages...) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		open := false
		for i, l := range strings.Split(string(text), "\n") {
			switch kind, fence := strings.CutPrefix(l, "```"); {
			case fence && open:
				open = false
			case fence:
				open = true
				list = append(list, block{page: page, line: i + 1, kind: kind})
			case open:
				b := &list[len(list)-1]
				b.lines = append(b.lines, l)
			}
		}
		if open {
			t.Errorf("%s: a block is not closed", page)
		}
	}
	return list
}

// TestDocumentedModels holds that every pp block is a legal program.
func TestDocumentedModels(t *testing.T) {
	n := 0
	for _, b := range blocks(t) {
		if b.kind != "pp" {
			continue
		}
		n++
		if list := frontend.Check(b.page, []byte(strings.Join(b.lines, "\n")+"\n"), frontend.Options{}); len(list) > 0 {
			t.Errorf("%s:%d: %v", b.page, b.line, list)
		}
	}
	if n == 0 {
		t.Error("no pp block found")
	}
}

// TestDocumentedCommands runs the "$ " lines of every sh block in a copy of the tree, block after block, and compares
// what they print with the lines below them, in which "..." stands for anything, also for lines.
func TestDocumentedCommands(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	copyTree(t, ".", dir)
	n := 0
	for _, b := range blocks(t) {
		if b.kind != "sh" {
			continue
		}
		for i := 0; i < len(b.lines); {
			command, ok := strings.CutPrefix(b.lines[i], "$ ")
			if !ok {
				t.Fatalf("%s:%d: output without a command", b.page, b.line+1+i)
			}
			at := b.line + 1 + i
			i++
			var want []string
			for i < len(b.lines) && !strings.HasPrefix(b.lines[i], "$ ") {
				want = append(want, b.lines[i])
				i++
			}
			n++
			runDocumented(t, dir, fmt.Sprintf("%s:%d", b.page, at), command, strings.Join(want, "\n"))
		}
	}
	if n == 0 {
		t.Error("no command found")
	}
}

func runDocumented(t *testing.T, dir, at, command, want string) {
	t.Helper()
	if command == "go test ./..." {
		return // this test is part of it
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "bash", "-c", command)
	c.Dir = dir
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		if strings.HasPrefix(command, "go mod download") && os.Getenv("CI") == "" {
			t.Logf("%s: %s: not checked, the module proxy cannot be reached", at, command)
			return
		}
		t.Errorf("%s: %s: %v\n%s", at, command, err, stderr.String())
		return
	}
	pattern := strings.ReplaceAll(regexp.QuoteMeta(want), `\.\.\.`, `.*`)
	if !regexp.MustCompile(`(?s)^` + pattern + `$`).MatchString(strings.TrimRight(string(out), "\n")) {
		t.Errorf("%s: %s prints\n%s\nthe page says\n%s", at, command, out, want)
	}
}

// copyTree copies what belongs to the repository: no dot folders, bundles or logs.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() && name != from && (strings.HasPrefix(base, ".") || strings.HasSuffix(base, ".bundle") || base == "log_output") {
			return filepath.SkipDir
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, name), 0o777)
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), content, 0o666)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestSituationsPage holds that docs/situations.md has each of the 72 situations once, with a test that exists or a reason why
// there is none.
func TestSituationsPage(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(text)
	}
	page, err := os.ReadFile("docs/situations.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`(?m)^\| (\d+)(?:-(\d+))? \| ([^|]+) \| ([^|]+) \|$`)
	test := regexp.MustCompile("`(Test\\w+)(?:/([^`]+))?`")
	next := 1
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		from, _ := strconv.Atoi(m[1])
		to := from
		if m[2] != "" {
			to, _ = strconv.Atoi(m[2])
		}
		if from != next || to < from {
			t.Errorf("%s comes where %d is due", m[0], next)
		}
		next = to + 1
		tests := test.FindAllStringSubmatch(m[4], -1)
		for _, n := range tests {
			if !strings.Contains(source.String(), "func "+n[1]+"(t *testing.T)") {
				t.Errorf("%s: there is no %s", m[1], n[1])
			}
			if n[2] != "" && !strings.Contains(source.String(), "{"+strconv.Quote(n[2])+", `") {
				t.Errorf("%s: %s has no case %q", m[1], n[1], n[2])
			}
		}
		reason := regexp.MustCompile("^(Not applicable: .|Later: .)").MatchString(m[4])
		if len(tests) == 0 && !reason {
			t.Errorf("%s: neither a test nor a reason", m[1])
		}
	}
	if next != 73 {
		t.Errorf("the page ends with situation %d", next-1)
	}
}

// TestDiagnosticsPage holds that docs/diagnostics.md lists the codes as they are; -update rewrites it.
func TestDiagnosticsPage(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Diagnostics\n\nEvery message of ppc has a stable code; E stops the work, W does not. `-json` gives code, place, message, notes and\n" +
		"repair as fields. This page is made from the table in package `diag` (`go test . -run TestDiagnosticsPage -update`).\n\n| code | meaning |\n|---|---|\n")
	for _, m := range diag.Codes() {
		fmt.Fprintf(&b, "| %s | %s |\n", m.Code, m.Text)
	}
	const page = "docs/diagnostics.md"
	if *update {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != b.String() {
		t.Errorf("%s is stale: go test . -run TestDiagnosticsPage -update", page)
	}
}
