package frontend_test
import ("testing";"os";"time";"fmt";"github.com/ppc-lang/ppc/diag";"github.com/ppc-lang/ppc/ir";"github.com/ppc-lang/ppc/frontend")
func TestTmp(t *testing.T){
 name:=os.Getenv("PP")
 src,err:=os.ReadFile(name)
 if err!=nil{t.Fatal(err)}
 for i:=0;i<3;i++{
 t0:=time.Now()
 s,l:=frontend.Load(name,src,frontend.Options{})
 fmt.Println(time.Since(t0))
 if i==2 {
 diag.Render(os.Stdout,l,func(f string)([]byte,bool){ if f==name {return src,true}; return frontend.Source(f)})
 if s!=nil{ if err:=s.Module.Verify(ir.Elaborated);err!=nil{t.Error(err)}
 if os.Getenv("Q")=="" {fmt.Println(s.Module); fmt.Printf("%+v\n",s); fmt.Printf("%+v\n%+v\n",s.Dataset, s.Optimizer); for _,e:=range s.Evals{fmt.Printf("%+v\n%+v\n",e,e.Dataset)}}}
 }}
}
