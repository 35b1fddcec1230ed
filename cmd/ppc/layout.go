package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v3"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/layout"
)

func (a *app) layoutCommand() *cli.Command {
	return &cli.Command{
		Name: "layout", Usage: "convert between notations for layers per stage", ArgsUsage: "NOTATION",
		Description: "NOTATION is a layout string of Megatron (Et*9|t*10|t*12|t*9L), a list of layers per stage (9,10,12,9),\n" +
			"an offset of MindFormers (offset:-1,0,2,-1, with ; between chunks), or noop layers (noop:47,62,63).",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "to", Usage: "megatron, mindformers or list (default: all that can say it)"},
			&cli.IntFlag{Name: "layers", Usage: "layers of the network; offset and noop need it", HideDefault: true},
			&cli.IntFlag{Name: "stages", Usage: "number of stages; noop, and layout strings with several chunks per stage, need it", HideDefault: true},
			&cli.IntFlag{Name: "chunks", Usage: "chunks per stage", HideDefault: true},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			text, err := file(c)
			if err != nil {
				return err
			}
			for _, n := range []string{"layers", "stages", "chunks"} {
				if c.IsSet(n) && c.Int(n) < 1 {
					return usagef("-%s is %d; it must be at least 1", n, c.Int(n))
				}
			}
			to := layout.Notations()
			if c.IsSet("to") {
				if !slices.Contains(to, c.String("to")) {
					return usagef("-to is one of %s, not `%s`", strings.Join(to, ", "), c.String("to"))
				}
				to = []string{c.String("to")}
			}
			l, err := layout.Parse(text, layout.Model{Layers: c.Int("layers"), Stages: c.Int("stages"), Chunks: c.Int("chunks")})
			if err != nil {
				return wrong(refusedLayout(err))
			}
			out := map[string]any{"layers": l.Layers(), "stages": l.Stages(), "chunks": l.Chunks(), "per_stage": l.PerStage(), "sizes": l.Sizes()}
			written := map[string]string{}
			for _, name := range to {
				s, err := l.Format(name)
				if err != nil && c.IsSet("to") {
					return wrong(refusedLayout(err))
				}
				if err == nil {
					written[name] = s
				}
			}
			if a.json {
				out["notations"] = written
				return a.printJSON(out)
			}
			w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
			for _, name := range to {
				switch s, ok := written[name]; {
				case ok && c.IsSet("to"):
					fmt.Fprintln(w, s)
				case ok:
					fmt.Fprintf(w, "%s\t%s\n", name, s)
				}
			}
			w.Flush()
			fmt.Fprint(w, "stage\tlayers\tby chunk\n")
			for s, n := range l.PerStage() {
				var chunks []int
				for _, row := range l.Sizes() {
					chunks = append(chunks, row[s])
				}
				fmt.Fprintf(w, "%d\t%d\t%s\n", s, n, layout.Join(chunks))
			}
			return w.Flush()
		},
	}
}

// refusedLayout makes a list of what the notation has wrong.
func refusedLayout(err error) error {
	var d diag.Diagnostic
	if errors.As(err, &d) {
		return diag.List{d}
	}
	return err
}
