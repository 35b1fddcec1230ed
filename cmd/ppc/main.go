// Command ppc compiles and runs pipeline-parallel programs. It holds flags and printing, nothing else.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v3"

	"github.com/ppc-lang/ppc"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend"
)

func main() { os.Exit(Main()) }

// Main runs the command with the process's arguments and returns its exit code: 0 done; 1 the input is wrong or cannot be
// read; 2 the command line is wrong; 3 a write or a run failed.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	a := &app{out: os.Stdout, err: os.Stderr, sources: map[string][]byte{}}
	return a.run(ctx, os.Args)
}

// app is one invocation.
type app struct {
	out, err io.Writer
	json     bool
	sources  map[string][]byte // files that were read, for excerpts
}

// failure is an error with an exit code.
type failure struct {
	code int
	err  error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func wrong(err error) error  { return &failure{1, err} }
func usage(err error) error  { return &failure{2, err} }
func failed(err error) error { return &failure{3, err} }

func usagef(format string, args ...any) error { return usage(fmt.Errorf(format, args...)) }

func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	err := root.Run(ctx, args)
	if err == nil {
		return 0
	}
	code := 2 // what is not ours comes from the flag parser
	var f *failure
	if errors.As(err, &f) {
		code = f.code
	}
	list := ppc.Diagnostics(err)
	a.show(list, code == 2)
	if a.json {
		a.printJSON(map[string]any{"diagnostics": list.Sorted()})
	}
	return code
}

// show prints diagnostics on stderr; errors of the command line have no code and point to the help.
func (a *app) show(list diag.List, commandLine bool) {
	if commandLine {
		for _, d := range list {
			fmt.Fprintf(a.err, "ppc: %s\n", d.Message)
			if d.Repair != "" {
				fmt.Fprintf(a.err, "     %s\n", d.Repair)
			}
		}
		fmt.Fprintln(a.err, "run `ppc help` for the commands and flags")
		return
	}
	diag.Render(a.err, list, func(file string) ([]byte, bool) {
		if src, ok := a.sources[file]; ok {
			return src, true
		}
		return frontend.Source(file)
	})
}

func (a *app) root() *cli.Command {
	root := &cli.Command{
		Name: "ppc", Usage: "compile a model for one device into a pipeline-parallel program, and run it",
		Writer: a.out, ErrWriter: a.err, HideVersion: true,
		EnableShellCompletion:      true,
		ShellCompletionCommandName: "completion",
		ConfigureShellCompletionCommand: func(c *cli.Command) {
			c.Hidden = false
		},
		Commands: []*cli.Command{a.compileCommand(), a.runCommand(), a.verifyCommand(), a.checkCommand(), a.fmtCommand(), a.dumpCommand(), a.versionCommand()},
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Args().Len() > 0 {
				return a.unknownCommand(c.Args().First())
			}
			cli.ShowRootCommandHelp(c)
			return usagef("a command is missing")
		},
		CommandNotFound: func(_ context.Context, _ *cli.Command, name string) {},
		ExitErrHandler:  func(context.Context, *cli.Command, error) {},
		OnUsageError:    func(_ context.Context, _ *cli.Command, err error, _ bool) error { return usage(err) },
	}
	for _, c := range root.Commands {
		c.OnUsageError = root.OnUsageError
		c.Flags = append(c.Flags, &cli.BoolFlag{Name: "json", Usage: "print one JSON object on stdout", Destination: &a.json})
	}
	return root
}

func (a *app) unknownCommand(name string) error {
	names := []string{"compile", "run", "verify", "check", "fmt", "dump", "version", "completion"}
	if s := diag.Suggest(name, names); s != "" {
		return usagef("unknown command `%s`; did you mean `%s`?", name, s)
	}
	return usagef("unknown command `%s`", name)
}

func (a *app) versionCommand() *cli.Command {
	return &cli.Command{
		Name: "version", Usage: "print the version",
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Args().Len() > 0 {
				return usagef("version takes no arguments")
			}
			if a.json {
				return a.printJSON(map[string]any{"version": ppc.Version})
			}
			_, err := fmt.Fprintln(a.out, "ppc", ppc.Version)
			return err
		},
	}
}

// file returns the one positional argument.
func file(c *cli.Command) (string, error) {
	switch c.Args().Len() {
	case 0:
		return "", usagef("ppc %s: the model file is missing", c.Name)
	case 1:
		return c.Args().First(), nil
	}
	return "", usagef("ppc %s takes one file, got %d: %q", c.Name, c.Args().Len(), c.Args().Slice())
}

// read reads a source file and remembers it for excerpts.
func (a *app) read(name string) ([]byte, error) {
	src, err := os.ReadFile(name)
	if err != nil {
		return nil, wrong(plainError(err))
	}
	a.sources[name] = src
	return src, nil
}

// plainError drops the name of the system call from an error about a path.
func plainError(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return fmt.Errorf("%s: %w", p.Path, p.Err)
	}
	return err
}
