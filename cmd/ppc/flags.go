package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/ppc-lang/ppc"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend"
)

// compileFlags are those that shape the compiled program.
func compileFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: "stages", Usage: "number of pipeline stages", HideDefault: true},
		&cli.IntFlag{Name: "devices", Usage: "number of devices, a multiple of the stages: each stage has as many ranks, which share its micro-batches", HideDefault: true},
		&cli.IntFlag{Name: "micro", Usage: "number of micro-batches", HideDefault: true},
		&cli.IntFlag{Name: "accumulate", Usage: "number of batches whose gradients are added up before the optimizer runs", HideDefault: true},
		&cli.StringFlag{Name: "schedule", Usage: "gpipe or 1f1b (default 1f1b)"},
		&cli.IntFlag{Name: "w-lag", Usage: "how many micro-batches a weight pass may wait", Value: ppc.DefaultWLag},
		&cli.StringFlag{Name: "target", Usage: "chip: 910b1, 910b2, 910b3, 910b4, 910c, or none"},
		&cli.StringFlag{Name: "block", Usage: "pipeline block to compile, if the file has several"},
		&cli.StringSliceFlag{Name: "set", Usage: "k=v: value of a constant"},
		&cli.StringFlag{Name: "layout", Usage: "layers per stage, in a notation of ppc layout; NAME=NOTATION if the network has several lists of cells"},
		&cli.BoolFlag{Name: "unsplit", Usage: "compile as one stage, whatever the marks say"},
		&cli.StringFlag{Name: "lazy-inline", Usage: "auto, marked or off"},
		&cli.StringFlag{Name: "seed", Usage: "seed of initial values (32 bits)"},
	}
}

// options translates compile flags. target is what an absent -target means.
func (a *app) options(c *cli.Command, name, target string) (ppc.Options, error) {
	src, err := a.read(name)
	if err != nil {
		return ppc.Options{}, err
	}
	o := ppc.Options{
		File: name, Source: src, Read: func(f string) ([]byte, error) { return a.read(f) }, Trees: &frontend.Trees{},
		Block: c.String("block"), Stages: c.Int("stages"), Devices: c.Int("devices"), Micro: c.Int("micro"), Accumulate: c.Int("accumulate"), Schedule: c.String("schedule"),
		Target: target, Layout: c.String("layout"), Unsplit: c.Bool("unsplit"), LazyInline: c.String("lazy-inline"), Set: map[string]string{},
	}
	for _, n := range []string{"stages", "devices", "micro", "accumulate"} {
		if c.IsSet(n) && c.Int(n) < 1 {
			return o, usagef("-%s is %d; it must be at least 1", n, c.Int(n))
		}
	}
	if c.IsSet("target") {
		o.Target = c.String("target")
	}
	if c.IsSet("w-lag") {
		lag := c.Int("w-lag")
		if lag < 0 {
			return o, usagef("-w-lag is %d; it cannot be negative", lag)
		}
		o.WLag = &lag
	}
	switch o.LazyInline {
	case "", "auto", "marked", "off":
	default:
		return o, usagef("-lazy-inline is auto, marked or off, not `%s`", o.LazyInline)
	}
	for _, kv := range c.StringSlice("set") {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return o, usagef("-set wants name=value, got `%s`", kv)
		}
		o.Set[k] = v
	}
	if o.Seed, err = seed(c); err != nil {
		return o, err
	}
	return o, nil
}

func seed(c *cli.Command) (*uint32, error) {
	if !c.IsSet("seed") {
		return nil, nil
	}
	n, err := strconv.ParseUint(c.String("seed"), 10, 32)
	if err != nil {
		return nil, usagef("-seed is `%s`; it must be a whole number from 0 to %d", c.String("seed"), uint32(math.MaxUint32))
	}
	s := uint32(n)
	return &s, nil
}

var invalidValue = regexp.MustCompile(`(?s)^invalid value "(.*)" for flag -([^:]+): `)

// flagError says what the parser of the command line found in words that do not depend on it.
func flagError(_ context.Context, c *cli.Command, err error, _ bool) error {
	text := err.Error()
	if name, ok := strings.CutPrefix(text, "flag provided but not defined: "); ok {
		if c.Root() == c {
			return usagef("unknown flag %s in front of the command; flags stand behind it", name)
		}
		var names []string
		for _, f := range c.Flags {
			names = append(names, f.Names()...)
		}
		if s := diag.Suggest(strings.TrimLeft(name, "-"), names); s != "" {
			return usagef("%s has no flag %s; did you mean -%s?", c.Name, name, s)
		}
		return usagef("%s has no flag %s", c.Name, name)
	}
	if name, ok := strings.CutPrefix(text, "flag needs an argument: "); ok {
		return usagef("%s wants a value", name)
	}
	if m := invalidValue.FindStringSubmatch(text); m != nil {
		return usagef("-%s is `%s`; it must be %s", m[2], m[1], kind(c, m[2]))
	}
	return usagef("%s", text)
}

// kind names what a flag takes.
func kind(c *cli.Command, name string) string {
	for _, f := range c.Flags {
		if !slices.Contains(f.Names(), name) {
			continue
		}
		switch f.(type) {
		case *cli.IntFlag:
			return "a whole number"
		case *cli.DurationFlag:
			return "a time such as 30s"
		case *cli.BoolFlag:
			return "true or false"
		}
	}
	return "another value"
}

// noEmptyValues refuses -save "" and the like, which are unset variables of a script.
func noEmptyValues(ctx context.Context, c *cli.Command) (context.Context, error) {
	for _, f := range c.Flags {
		if n := f.Names()[0]; c.IsSet(n) && fmt.Sprint(c.Value(n)) == "" {
			return ctx, usagef("-%s is empty", n)
		}
	}
	return ctx, nil
}

// cpuPath returns the kernels that -cpu asks for.
func cpuPath(c *cli.Command) (string, error) {
	switch s := c.String("cpu"); s {
	case "", "generic", "avx2", "avx512":
		return s, nil
	default:
		return "", usagef("-cpu is generic, avx2 or avx512, not `%s`", s)
	}
}

// printJSON prints one object on stdout.
func (a *app) printJSON(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return failed(err)
	}
	fmt.Fprintf(a.out, "%s\n", b)
	return nil
}

// number is a float that JSON can hold: one that is not finite becomes a string.
type number float64

func (n number) MarshalJSON() ([]byte, error) {
	f := float64(n)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return json.Marshal(strconv.FormatFloat(f, 'g', -1, 64))
	}
	return json.Marshal(f)
}

// size prints bytes for people.
func size(n int) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 10<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 10<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}
